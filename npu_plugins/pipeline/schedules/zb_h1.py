"""ZB-H1: 1F1B with the backward split, so that weight gradients fill the bubble at the end."""

from __future__ import annotations

from npu_plugins.pipeline.schedules.actions import Action, Kind
from npu_plugins.pipeline.schedules.schedule import Schedule, loop, require_counts


def zb_h1(ranks: int, micro_batches: int) -> Schedule:
    """Return the ZB-H1 schedule (Qi et al., arXiv 2401.10241 §2.1).

    The bubble is (p - 1)(F + I - W), a third of 1F1B's when the three take equally long, and each rank keeps
    min(m, p) activations, as much as 1F1B's rank 0 does.

    Raises:
        ScheduleError: a count is no positive whole number.
    """
    require_counts("zb-h1", ranks=ranks, micro_batches=micro_batches)
    steps = tuple(_rank(rank, ranks, micro_batches) for rank in range(ranks))
    return Schedule("zb-h1", loop(ranks), micro_batches, steps)


def _rank(rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
    """1F1B's order; rank r puts off weight gradients by r micro-batches, which evens out activations."""
    ahead = min(ranks - rank, micro_batches)
    order = [Action(Kind.FORWARD, rank, i) for i in range(ahead)]
    for i in range(micro_batches):
        order.append(Action(Kind.INPUT_GRADIENT, rank, i))
        if i >= rank:
            order.append(Action(Kind.WEIGHT_GRADIENT, rank, i - rank))
        if i + ahead < micro_batches:
            order.append(Action(Kind.FORWARD, rank, i + ahead))
    left = range(max(0, micro_batches - rank), micro_batches)
    order += [Action(Kind.WEIGHT_GRADIENT, rank, i) for i in left]
    return tuple(order)
