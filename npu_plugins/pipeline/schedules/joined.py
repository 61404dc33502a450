"""Backwards that need no split: those whose input gradient no other rank waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npu_plugins.pipeline.schedules.actions import Action, Kind, Step
from npu_plugins.pipeline.schedules.schedule import Schedule


def join_halves(schedule: Schedule) -> Schedule:
    """Return `schedule` with a ``B`` in place of each ``I`` that its own ``W`` follows at once, where no
    other rank waits between them.

    Splitting lets another rank go on with the input gradient while the weights' is computed. Stage 0 has no
    such gradient, and at the turn of a V it stays on the rank; there the split only costs: activations live
    longer, and what both halves read is fetched twice. The order of everything else stays, and so do all
    times of the simulation.

    Args:
        schedule: compute only, as its generator returned it.
    """
    rank_of = schedule.placement.rank_of
    inner = {stage for stage, rank in enumerate(rank_of) if stage == 0 or rank_of[stage - 1] == rank}
    return replace(schedule, steps=tuple(tuple(_joined(steps, inner)) for steps in schedule.steps))


def _joined(steps: Sequence[Step], stages: set[int]) -> list[Step]:
    """Join the halves that belong to `stages`."""
    joined: list[Step] = []
    for step in steps:
        if joined and joined[-1] == _half(step, stages):
            joined[-1] = joined[-1]._replace(kind=Kind.BACKWARD)
        else:
            joined.append(step)
    return joined


def _half(step: Step, stages: set[int]) -> Action | None:
    """The ``I`` that a ``W`` of one of `stages` completes."""
    if isinstance(step, Action) and step.kind is Kind.WEIGHT_GRADIENT and step.stage in stages:
        return step._replace(kind=Kind.INPUT_GRADIENT)
    return None
