"""The pass that puts sends and receives into a schedule, so that no order of arrival can block it.

Every transfer gets a place in one order of all things that happen in the pipeline: right behind the action
that produces it, when all actions are sorted by the time at which they end. Each rank's list is that order,
seen from the rank. So both ends of every transfer agree on what comes before it, calls between two ranks
match by order, and even ranks that stand still at each exchange until it is complete can always go on: of all
unfinished things the first in the order waits for nothing.

The times are those of a simulation, but only the quality depends on them. Whatever the real times are,
nothing blocks; the closer they are, the less a rank's communication stream waits for a peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from npu_plugins.pipeline.errors import ScheduleError
from npu_plugins.pipeline.schedules.actions import RECEIVES, Action, Exchange, Kind, Step
from npu_plugins.pipeline.schedules.collector import without_collector
from npu_plugins.pipeline.schedules.schedule import Placement, Schedule
from npu_plugins.pipeline.schedules.simulate import UNIT, Costs, Time, simulate

_Transfer: TypeAlias = tuple[Time, int, int, int, Action]
"""When it is produced, its direction (activations first), the producing stage, the micro-batch: the place
in the order, the same for both ends; and what this end does."""


@without_collector
def add_communication(schedule: Schedule, costs: Costs | Sequence[Costs] = UNIT) -> Schedule:
    """Return `schedule` with the exchanges that its compute needs.

    A send is posted as soon as its tensor is there. A receive is posted before the action during which the
    peer should be done with it, no earlier, so that its buffer lives briefly and the transfer runs beside
    compute. What is posted at one moment is one exchange, in both directions; but receives that the next
    action does not wait for come behind the one that it does, as HCCL reports an exchange complete as a
    whole.

    Args:
        schedule: compute only.
        costs: the times by which transfers are put in order, as `simulate` takes them; compute times must be
            positive.

    Raises:
        ScheduleError: the schedule already holds exchanges, its compute deadlocks, or `costs` do not fit.
    """
    if any(isinstance(step, Exchange) for steps in schedule.steps for step in steps):
        raise ScheduleError(
            f"schedule {schedule.name} already holds exchanges: give the one its generator returned"
        )
    for each in [costs] if isinstance(costs, Costs) else costs:
        if min(each[:3]) <= 0:
            raise ScheduleError(
                f"transfers cannot be put in order by the costs {tuple(each)}: compute takes time"
            )
    simulation = simulate(schedule, costs)
    compute = [schedule.compute(rank) for rank in range(schedule.ranks)]
    transfers = _transfers(compute, schedule.placement, simulation.ends)
    steps = tuple(map(_weave, compute, simulation.starts, simulation.ends, transfers))
    return Schedule(schedule.name, schedule.placement, schedule.micro_batches, steps, schedule.forward_only)


def _transfers(
    compute: Sequence[Sequence[Action]], placement: Placement, ends: Sequence[Sequence[Time]]
) -> list[list[_Transfer]]:
    """Return each rank's sends and receives in the common order."""
    transfers: list[list[_Transfer]] = [[] for _ in compute]
    for rank, own in enumerate(transfers):
        onward, back = _neighbours(placement, rank, 1), _neighbours(placement, rank, -1)
        for (kind, stage, i, _), time in zip(compute[rank], ends[rank], strict=True):
            if kind is Kind.FORWARD:
                peer = onward[stage]
                if peer is not None:
                    own.append((time, -1, stage, i, Action(Kind.SEND_ACTIVATION, stage, i, peer)))
                    arrives = Action(Kind.RECEIVE_ACTIVATION, stage + 1, i, rank)
                    transfers[peer].append((time, -1, stage, i, arrives))
            elif kind is not Kind.WEIGHT_GRADIENT:
                peer = back[stage]
                if peer is not None:
                    own.append((time, 1, stage, i, Action(Kind.SEND_GRADIENT, stage, i, peer)))
                    arrives = Action(Kind.RECEIVE_GRADIENT, stage - 1, i, rank)
                    transfers[peer].append((time, 1, stage, i, arrives))
    for each in transfers:
        each.sort()
    return transfers


def _neighbours(placement: Placement, rank: int, step: int) -> dict[int, int | None]:
    """Return, for each stage of `rank`, the rank of the stage `step` further; None where no message goes."""
    rank_of, stages = placement.rank_of, placement.stages
    return {
        stage: rank_of[stage + step] if 0 <= stage + step < stages and rank_of[stage + step] != rank else None
        for stage in placement.stages_of(rank)
    }


def _weave(
    compute: tuple[Action, ...], starts: tuple[Time, ...], ends: tuple[Time, ...], transfers: list[_Transfer]
) -> tuple[Step, ...]:
    """Put a rank's transfers, in order, between its compute actions."""
    steps: list[Step] = []
    position = 0
    for action, start, end in zip(compute, starts, ends, strict=True):
        first = position
        while position < len(transfers) and transfers[position][0] < end:
            position += 1
        if position == first + 1:
            steps.append(Exchange((transfers[first][-1],)))
        elif position > first:
            steps += _exchanges(transfers[first:position], action, start)
        steps.append(action)
    if position < len(transfers):
        steps.append(Exchange(tuple(transfer[-1] for transfer in transfers[position:])))
    return tuple(steps)


def _exchanges(transfers: list[_Transfer], action: Action, start: Time) -> list[Exchange]:
    """Divide what is posted before `action` so that it waits for nothing but its own input.

    One exchange is of what is there when the action starts. No receive comes into it behind the action's
    input, and what only arrives while the action runs makes an exchange for each moment.
    """
    exchanges: list[list[Action]] = []
    moment, complete = start, False
    for time, *_, transfer in transfers:
        later = max(time, start)
        if not exchanges or later != moment or (complete and transfer.kind in RECEIVES):
            exchanges.append([])
            complete = False
        exchanges[-1].append(transfer)
        moment = later
        complete = complete or (
            transfer.kind in RECEIVES
            and transfer[1:3] == action[1:3]
            and action.kind in _WAITS[transfer.kind]
        )
    return [Exchange(tuple(together)) for together in exchanges]


_WAITS = {
    Kind.RECEIVE_ACTIVATION: (Kind.FORWARD,),
    Kind.RECEIVE_GRADIENT: (Kind.BACKWARD, Kind.INPUT_GRADIENT),
}
"""Which actions wait for a receive of their stage and micro-batch."""
