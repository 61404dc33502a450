"""Backwards that need no split: those of the first stage, whose input gradient goes nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npu_plugins.pipeline.schedules.actions import Action, Kind, Step
from npu_plugins.pipeline.schedules.schedule import Schedule


def join_first_stage(schedule: Schedule) -> Schedule:
    """Return `schedule` with a ``B`` in place of each ``I`` of stage 0 that its own ``W`` follows at once.

    Splitting lets the stage before go on with the input gradient while the weights' is computed. Before stage
    0 there is none, so that there the split only costs: activations live longer, and what both halves read is
    fetched twice. The order of everything else stays, and so do all times of the simulation.

    Args:
        schedule: compute only, as its generator returned it.
    """
    return replace(schedule, steps=tuple(tuple(_joined(steps)) for steps in schedule.steps))


def _joined(steps: Sequence[Step]) -> list[Step]:
    joined: list[Step] = []
    for step in steps:
        if step[0] is Kind.WEIGHT_GRADIENT and joined and joined[-1] == _half(step):
            joined[-1] = Action(Kind.BACKWARD, 0, step[2])
        else:
            joined.append(step)
    return joined


def _half(step: Step) -> Action | None:
    """The ``I`` that a ``W`` of stage 0 completes."""
    if isinstance(step, Action) and step.stage == 0:
        return step._replace(kind=Kind.INPUT_GRADIENT)
    return None
