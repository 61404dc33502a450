"""Whether a schedule can run as it stands, and what it keeps and sends: found without any device."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from npu_plugins.pipeline.errors import ScheduleError
from npu_plugins.pipeline.schedules.actions import Exchange, Kind, Step
from npu_plugins.pipeline.schedules.collector import without_collector
from npu_plugins.pipeline.schedules.rank_check import RankCheck
from npu_plugins.pipeline.schedules.rendezvous import check_order_of_messages, check_rendezvous, wires
from npu_plugins.pipeline.schedules.schedule import Placement, Schedule


@dataclass(frozen=True)
class Report:
    """What `validate` found in a schedule that can run."""

    peak_activations: tuple[Fraction, ...]
    """By rank: the most activations kept at one moment, in those of one rank's whole share of the model."""
    transfers: tuple[int, ...]
    """By rank: sends and receives of one micro-batch's activation or gradient."""

    @property
    def peak(self) -> Fraction:
        """The most activations on any rank."""
        return max(self.peak_activations)


@without_collector
def validate(schedule: Schedule) -> Report:
    """Check a schedule with its exchanges.

    - Each rank works on its own stages only, and does ``F`` and either ``B`` or ``I`` and ``W`` exactly once
      for each of its stages and micro-batches.
    - What an action needs is there before it: made earlier on the rank, or received in an earlier exchange.
      Nothing is sent before it is made.
    - The n-th send from one rank to another is what the other receives n-th from it: HCCL matches by order.
    - Nothing blocks, even when a rank stands still at each exchange until both sides of all its transfers
      have been posted (rendezvous).

    Raises:
        ScheduleError: one sentence with the rank and the step at which this first fails.
    """
    check_placement(schedule.placement)
    if len(schedule.steps) != schedule.ranks:
        raise ScheduleError(
            f"schedule {schedule.name} has {len(schedule.steps)} lists of steps for {schedule.ranks} ranks: "
            "give one for each"
        )
    for rank in range(schedule.ranks):
        RankCheck(schedule, rank).run()
    messages = wires(schedule)
    check_order_of_messages(schedule, messages)
    check_rendezvous(schedule, messages)
    return Report(peak_activations(schedule), tuple(map(_transfers_in, schedule.steps)))


def check_placement(placement: Placement) -> None:
    """Check that ranks are counted from 0 and hold equally many stages.

    Raises:
        ScheduleError: with the ranks of the stages.
    """
    held = {rank: placement.rank_of.count(rank) for rank in placement.rank_of}
    if sorted(held) != list(range(len(held))) or len(set(held.values())) != 1:
        raise ScheduleError(
            f"stages on the ranks {list(placement.rank_of)} are no placement: give each rank from 0 "
            "equally many"
        )


def peak_activations(schedule: Schedule) -> tuple[Fraction, ...]:
    """Return the most activations that each rank keeps at one moment, in those of its whole share of the
    model.

    An activation is kept from the start of its ``F`` to the end of its ``B`` or ``W``; for evaluation, while
    its ``F`` runs. Receive buffers are not counted: they become the input of the ``F``.
    """
    peaks = []
    for rank in range(schedule.ranks):
        kept = peak = 0
        for kind, *_ in schedule.compute(rank):
            if kind is Kind.FORWARD:
                kept += 1
                peak = max(peak, kept)
            if schedule.forward_only or kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT):
                kept -= 1
        peaks.append(Fraction(peak, schedule.placement.chunks))
    return tuple(peaks)


def count_transfers(schedule: Schedule) -> tuple[int, ...]:
    """Return how many sends and receives each rank needs, whether or not they have been put in.

    Each boundary between stages on two ranks takes one for every micro-batch and direction.
    """
    rank_of = schedule.placement.rank_of
    counts = [0] * schedule.ranks
    for here, there in zip(rank_of, rank_of[1:], strict=False):
        if here != there:
            counts[here] += schedule.micro_batches * (1 if schedule.forward_only else 2)
            counts[there] += schedule.micro_batches * (1 if schedule.forward_only else 2)
    return tuple(counts)


def _transfers_in(steps: tuple[Step, ...]) -> int:
    return sum(len(step.transfers) for step in steps if isinstance(step, Exchange))
