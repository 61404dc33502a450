"""Time and bubble of a schedule without any device: all starts as early as its rank and inputs allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from npu_plugins.pipeline.errors import ScheduleError
from npu_plugins.pipeline.schedules.actions import Action, Kind
from npu_plugins.pipeline.schedules.collector import without_collector
from npu_plugins.pipeline.schedules.schedule import Schedule

Time: TypeAlias = float | Fraction
"""Any unit. Fractions stay exact, so that closed forms can be met to the last digit."""


class Costs(NamedTuple):
    """Times of one micro-batch. Backwards that are not split take ``input_gradient + weight_gradient``."""

    forward: Time = 1
    input_gradient: Time = 1
    weight_gradient: Time = 1
    transfer: Time = 0
    """From the end of the producer to the earliest start of the consumer on another rank."""

    @property
    def total(self) -> Time:
        """Compute time of one micro-batch."""
        return self.forward + self.input_gradient + self.weight_gradient


class Span(NamedTuple):
    """One action of one rank in time; simulated or measured."""

    rank: int
    action: Action
    start: Time
    end: Time


@dataclass(frozen=True)
class Simulation:
    """When each compute action of a schedule runs. Time 0 is the start of the first one."""

    schedule: Schedule
    starts: tuple[tuple[Time, ...], ...]
    """By rank, in the order of `Schedule.compute`."""
    ends: tuple[tuple[Time, ...], ...]

    @property
    def time(self) -> Time:
        """Time of the whole step, until the last rank is done."""
        return max(ends[-1] for ends in self.ends)

    def busy(self, rank: int) -> Time:
        """Time that `rank` computes."""
        return sum(self.ends[rank]) - sum(self.starts[rank])

    def idle(self, rank: int) -> Time:
        """Time of the step that `rank` does not compute, also before its first and behind its last action."""
        return self.time - self.busy(rank)

    def idle_inside(self, rank: int) -> Time:
        """Time that `rank` waits between its first and its last action.

        It is what a zero-bubble schedule loses when the ranks' steps may overlap (arXiv 2401.10241 §4): a
        rank that starts later also ends later. An all-reduce over the ranks (clipping, overflow) lines them
        up again, and then `bubble` counts.
        """
        return self.ends[rank][-1] - self.starts[rank][0] - self.busy(rank)

    @property
    def bubble(self) -> Time:
        """Idle time in the whole step of the busiest rank; with even stages every rank has this much."""
        return min(self.idle(rank) for rank in range(self.schedule.ranks))

    @property
    def bubble_inside(self) -> Time:
        """The longest `idle_inside` of any rank."""
        return max(self.idle_inside(rank) for rank in range(self.schedule.ranks))

    def spans(self) -> list[Span]:
        """Return every action with its time, rank by rank."""
        return [
            Span(rank, *each)
            for rank in range(self.schedule.ranks)
            for each in zip(self.schedule.compute(rank), self.starts[rank], self.ends[rank], strict=True)
        ]


UNIT = Costs()
"""Forward, input gradient and weight gradient take equally long, transfers no time."""


@without_collector
def simulate(schedule: Schedule, costs: Costs | Sequence[Costs] = UNIT) -> Simulation:
    """Run `schedule` on paper.

    Args:
        schedule: with or without exchanges; transfers run beside compute and take `Costs.transfer`.
        costs: of one rank's whole share of the model, which its chunks divide evenly; or one `Costs` for each
            stage where stages are uneven.

    Raises:
        ScheduleError: the lists wait for each other in a circle or for an action that no rank runs, or
            `costs` has the wrong length or a negative time.
    """
    placement = schedule.placement
    clock = _Clock(schedule, _stage_costs(costs, placement.stages, placement.chunks))
    runnable = list(range(placement.ranks))
    while runnable:
        runnable += clock.advance(runnable.pop())
    clock.check_finished()
    return Simulation(schedule, tuple(map(tuple, clock.starts)), tuple(map(tuple, clock.ends)))


def _stage_costs(costs: Costs | Sequence[Costs], stages: int, chunks: int) -> list[Costs]:
    if isinstance(costs, Costs):
        forward, input_gradient, weight_gradient, transfer = costs
        share = Costs(forward / chunks, input_gradient / chunks, weight_gradient / chunks, transfer)
        per_stage = [share] * stages
    else:
        per_stage = list(costs)
    if len(per_stage) != stages:
        raise ScheduleError(
            f"{len(per_stage)} costs for {stages} stages: give one for each, or one for all ranks"
        )
    for stage, each in enumerate(per_stage):
        if min(each) < 0:
            raise ScheduleError(f"the costs of stage {stage} are {tuple(each)}: no time can be negative")
    return per_stage


class _Rule(NamedTuple):
    """How the actions of one kind at one stage run; slots as in `_Clock`."""

    needed: int | None
    """How far the slot of what an action waits for is from the action's own forward's; None: nothing."""
    delay: Time
    """From when that was done."""
    duration: Time
    filled: int | None
    """As `needed`: the slot that the action fills; None: nobody waits for it."""


class _Clock:
    """The state of a simulation: how far each rank is, and when what others may wait for was done.

    Each forward has a slot, stage × m + micro-batch, and each gradient of a stage's input (of ``I`` or ``B``)
    one as far behind the last forward's. An action that needs a slot not yet filled parks its rank there; the
    rank goes on when the slot is filled. So every action is looked at once or twice, whatever the schedule.
    """

    def __init__(self, schedule: Schedule, costs: list[Costs]) -> None:
        self.micro_batches = schedule.micro_batches
        self.gradients = schedule.placement.stages * schedule.micro_batches
        self.compute = [schedule.compute(rank) for rank in range(schedule.ranks)]
        self.starts: list[list[Time]] = [[] for _ in self.compute]
        self.ends: list[list[Time]] = [[] for _ in self.compute]
        self.done: list[Time | None] = [None] * (2 * self.gradients)
        self.parked: dict[int, int] = {}
        self.rules = [
            self._rules(stage, each, schedule.placement.rank_of) for stage, each in enumerate(costs)
        ]

    def _rules(self, stage: int, costs: Costs, rank_of: tuple[int, ...]) -> dict[Kind, _Rule]:
        """Return the rules of a stage's actions."""
        forward, input_gradient, weight_gradient, transfer = costs
        m, gradients, last = self.micro_batches, self.gradients, len(rank_of) - 1
        before, delay = (None, 0) if stage == 0 else (-m, transfer)
        if stage > 0 and rank_of[stage - 1] == rank_of[stage]:
            delay = 0
        behind, delay_back = (0, 0) if stage == last else (m + gradients, transfer)  # the last: its forward
        if stage < last and rank_of[stage + 1] == rank_of[stage]:
            delay_back = 0
        return {
            Kind.FORWARD: _Rule(before, delay, forward, 0),
            Kind.INPUT_GRADIENT: _Rule(behind, delay_back, input_gradient, gradients),
            Kind.BACKWARD: _Rule(behind, delay_back, input_gradient + weight_gradient, gradients),
            Kind.WEIGHT_GRADIENT: _Rule(gradients, 0, weight_gradient, None),
        }

    def advance(self, rank: int) -> list[int]:
        """Run `rank` until it must wait; return the ranks that waited for what it did."""
        starts, ends, compute, done = self.starts[rank], self.ends[rank], self.compute[rank], self.done
        rules, micro_batches, parked = self.rules, self.micro_batches, self.parked
        woken: list[int] = []
        now = ends[-1] if ends else 0
        for place in range(len(ends), len(compute)):
            kind, stage, micro_batch, _ = compute[place]
            needed, delay, duration, filled = rules[stage][kind]
            slot = stage * micro_batches + micro_batch
            if needed is not None:
                ready = done[slot + needed]
                if ready is None:
                    parked[slot + needed] = rank
                    break
                if delay:
                    ready += delay
                if ready > now:
                    now = ready
            starts.append(now)
            now += duration
            ends.append(now)
            if filled is not None:
                slot += filled
                done[slot] = now
                if slot in parked:
                    woken.append(parked.pop(slot))
        return woken

    def check_finished(self) -> None:
        """Refuse lists that did not come to their end."""
        stuck = []
        for rank, (ends, compute) in enumerate(zip(self.ends, self.compute, strict=True)):
            if len(ends) < len(compute):
                kind, stage, micro_batch, _ = compute[len(ends)]
                needed = self.rules[stage][kind].needed
                assert needed is not None, "what waits for nothing has run"
                slot = stage * self.micro_batches + micro_batch + needed
                stage, micro_batch = divmod(slot % self.gradients, self.micro_batches)
                letter = "F" if slot < self.gradients else "B or I"
                stuck.append(f"rank {rank} at {compute[len(ends)]} for {letter} {micro_batch}@{stage}")
        if stuck:
            raise ScheduleError(f"the schedule deadlocks, each rank waiting: {'; '.join(stuck)}")
