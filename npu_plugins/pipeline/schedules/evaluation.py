"""Evaluation: forwards only."""

from __future__ import annotations

from npu_plugins.pipeline.schedules.actions import Action, Kind
from npu_plugins.pipeline.schedules.schedule import Placement, Schedule, loop, require_counts


def evaluation(placement: Placement, micro_batches: int) -> Schedule:
    """Return the schedule that runs the forwards alone, on the stages as training has placed them.

    Every rank is busy from its first to its last action, except that with several chunks on a loop and m no
    multiple of p the last group of micro-batches leaves gaps. Nothing is kept for a backward.

    Args:
        placement: of the training schedule: a loop with any number of chunks, or a V.
        micro_batches: any number.

    Raises:
        ScheduleError: the number is not positive.
    """
    require_counts("eval", micro_batches=micro_batches)
    ranks = placement.ranks

    def begins(micro_batch: int) -> int:
        """When it enters stage 0, one time unit a stage, so that it meets no other on a rank."""
        if placement == loop(ranks, placement.chunks):  # p at a time, once around for each chunk
            group, place = divmod(micro_batch, ranks)
            return group * placement.stages + place
        return placement.chunks * micro_batch  # a V's two stages on a rank are an odd time apart

    steps = tuple(
        tuple(
            Action(Kind.FORWARD, stage, micro_batch)
            for _, stage, micro_batch in sorted(
                (begins(i) + stage, stage, i)
                for stage in placement.stages_of(rank)
                for i in range(micro_batches)
            )
        )
        for rank in range(ranks)
    )
    return Schedule("eval", placement, micro_batches, steps, forward_only=True)
