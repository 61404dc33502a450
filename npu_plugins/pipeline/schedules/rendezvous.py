"""Whether the exchanges of all ranks fit together: messages in one order, and no rank waiting for ever."""

from __future__ import annotations

from collections import Counter

from npu_plugins.pipeline.errors import ScheduleError
from npu_plugins.pipeline.schedules.actions import SENDS, Action, Exchange, Kind
from npu_plugins.pipeline.schedules.schedule import Schedule


def check_order_of_messages(schedule: Schedule) -> None:
    """Check that the n-th send from one rank to another meets the n-th receive, and that they are one
    message.

    Raises:
        ScheduleError: with the first message that is not so.
    """
    sent: dict[tuple[int, int], list[Action]] = {}
    received: dict[tuple[int, int], list[Action]] = {}
    for rank, steps in enumerate(schedule.steps):
        for step in steps:
            for action in step.transfers if isinstance(step, Exchange) else ():
                assert action.peer is not None, "a rank's check has seen its peer"
                if action.kind in SENDS:
                    sent.setdefault((rank, action.peer), []).append(action)
                else:
                    received.setdefault((action.peer, rank), []).append(action)
    for source, target in sorted({*sent, *received}):
        sends, receives = sent.get((source, target), []), received.get((source, target), [])
        for place in range(max(len(sends), len(receives))):
            send = sends[place] if place < len(sends) else None
            receive = receives[place] if place < len(receives) else None
            if receive is None or send is None or _message(send) != _message(receive):
                raise ScheduleError(
                    f"schedule {schedule.name} cannot run: message {place} from rank {source} to rank "
                    f"{target} is {send or 'never sent'}, where the receiver has {receive or 'nothing'}"
                )


def _message(action: Action) -> tuple[bool, int, int]:
    """What is in it: an activation or a gradient, of which sending stage and micro-batch."""
    kind, stage, micro_batch, _ = action
    activation = kind in (Kind.SEND_ACTIVATION, Kind.RECEIVE_ACTIVATION)
    step = 0 if kind in SENDS else -1 if activation else 1
    return activation, stage + step, micro_batch


def check_rendezvous(schedule: Schedule) -> None:
    """Check that nothing blocks when ranks stand at each exchange until its transfers are posted on both
    sides.

    An executor that only waits for what an action needs is less strict, so it does not block either. The
    order of messages must have been checked before.

    Raises:
        ScheduleError: with every rank that waits for ever, and the exchange at which it stands.
    """
    exchanges = [
        [(place, step) for place, step in enumerate(steps) if isinstance(step, Exchange)]
        for steps in schedule.steps
    ]
    posted: Counter[tuple[int, int, bool]] = Counter()  # by a rank, for a peer, and whether it sends
    current, entered = [0] * schedule.ranks, [-1] * schedule.ranks
    runnable = list(range(schedule.ranks))
    while runnable:
        rank = runnable.pop()
        while current[rank] < len(exchanges[rank]):
            sides = [_side(action) for action in exchanges[rank][current[rank]][1].transfers]
            if entered[rank] < current[rank]:
                entered[rank] = current[rank]
                for peer, sends in sides:
                    posted[rank, peer, sends] += 1
                    runnable.append(peer)
            if any(posted[peer, rank, not sends] < posted[rank, peer, sends] for peer, sends in sides):
                break
            current[rank] += 1
    waiting = [
        f"rank {rank} at step {place} {step}"
        for rank in range(schedule.ranks)
        for place, step in exchanges[rank][current[rank] : current[rank] + 1]
    ]
    if waiting:
        raise ScheduleError(f"schedule {schedule.name} deadlocks, each rank waiting: {'; '.join(waiting)}")


def _side(action: Action) -> tuple[int, bool]:
    assert action.peer is not None, "a transfer has a peer"
    return action.peer, action.kind in SENDS
