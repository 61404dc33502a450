"""Whether the exchanges of all ranks fit together: messages in one order, and no rank waiting for ever."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from npu_plugins.pipeline.errors import ScheduleError
from npu_plugins.pipeline.schedules.actions import SENDS, Action, Exchange, Kind
from npu_plugins.pipeline.schedules.schedule import Schedule


class Wire(NamedTuple):
    """What goes from one rank to another: entry n of both lists is the n-th message, as each end sees it."""

    sends: list[Action]
    receives: list[Action]
    sent_in: list[int]
    """The place, among the sender's exchanges, of the one that a message is in."""
    received_in: list[int]


def wires(schedule: Schedule) -> dict[tuple[int, int], Wire]:
    """Return what goes from which rank to which other, by (source, target)."""
    found: dict[tuple[int, int], Wire] = defaultdict(lambda: Wire([], [], [], []))
    for rank, steps in enumerate(schedule.steps):
        exchanges = [step for step in steps if isinstance(step, Exchange)]
        for place, exchange in enumerate(exchanges):
            for action in exchange.transfers:
                assert action.peer is not None, "a rank's check has seen its peer"
                if action.kind in SENDS:
                    wire = found[rank, action.peer]
                    wire.sends.append(action)
                    wire.sent_in.append(place)
                else:
                    wire = found[action.peer, rank]
                    wire.receives.append(action)
                    wire.received_in.append(place)
    return found


def check_order_of_messages(schedule: Schedule, found: dict[tuple[int, int], Wire]) -> None:
    """Check that the n-th send from one rank to another meets the n-th receive, and that they are one
    message.

    Raises:
        ScheduleError: with the first message that is not so.
    """
    for (source, target), wire in sorted(found.items()):
        sent, received = list(map(_message, wire.sends)), list(map(_message, wire.receives))
        if sent == received:
            continue
        both = zip(sent, received, strict=False)
        place = next(
            (n for n, (one, other) in enumerate(both) if one != other), min(len(sent), len(received))
        )
        send = wire.sends[place] if place < len(sent) else "never sent"
        receive = wire.receives[place] if place < len(received) else "nothing"
        raise ScheduleError(
            f"schedule {schedule.name} cannot run: message {place} from rank {source} to rank "
            f"{target} is {send}, where the receiver has {receive}"
        )


def _message(action: Action) -> tuple[bool, int, int]:
    """What is in it: an activation or a gradient, of which sending stage and micro-batch."""
    kind, stage, micro_batch, _ = action
    if kind is Kind.SEND_ACTIVATION:
        return True, stage, micro_batch
    if kind is Kind.RECEIVE_ACTIVATION:
        return True, stage - 1, micro_batch
    return False, stage if kind is Kind.SEND_GRADIENT else stage + 1, micro_batch


def check_rendezvous(schedule: Schedule, found: dict[tuple[int, int], Wire]) -> None:
    """Check that nothing blocks when ranks stand at each exchange until its transfers are posted on both
    sides.

    An executor that only waits for what an action needs is less strict, so it does not block either. The
    order of messages must have been checked before.

    Raises:
        ScheduleError: with every rank that waits for ever, and the exchange at which it stands.
    """
    # By rank and exchange: the exchanges (rank, place) in which the other sides of its transfers are posted.
    partners: list[list[list[tuple[int, int]]]] = [
        [[] for step in steps if isinstance(step, Exchange)] for steps in schedule.steps
    ]
    for (source, target), wire in found.items():
        for here, there in zip(wire.sent_in, wire.received_in, strict=True):
            partners[source][here].append((target, there))
            partners[target][there].append((source, here))
    current = [0] * schedule.ranks  # the exchange at which a rank stands; it has posted that one
    parked: dict[tuple[int, int], list[int]] = defaultdict(list)  # by rank and exchange: who waits for it
    runnable = list(range(schedule.ranks))
    while runnable:
        rank = runnable.pop()
        while current[rank] < len(partners[rank]):
            late = None
            for partner in partners[rank][current[rank]]:
                if current[partner[0]] < partner[1]:
                    late = partner
            if late is not None:
                parked[late].append(rank)
                break
            current[rank] += 1
            runnable += parked.pop((rank, current[rank]), ())
    _refuse_if_waiting(schedule, current)


def _refuse_if_waiting(schedule: Schedule, current: list[int]) -> None:
    waiting = []
    for rank, steps in enumerate(schedule.steps):
        exchanges = [(place, step) for place, step in enumerate(steps) if isinstance(step, Exchange)]
        waiting += [f"rank {rank} at step {place} {step}" for place, step in exchanges[current[rank] :][:1]]
    if waiting:
        raise ScheduleError(f"schedule {schedule.name} deadlocks, each rank waiting: {'; '.join(waiting)}")
