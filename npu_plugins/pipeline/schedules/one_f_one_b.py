"""1F1B: after the warm-up each rank alternates one forward and one backward."""

from __future__ import annotations

from npu_plugins.pipeline.schedules.actions import Action, Kind
from npu_plugins.pipeline.schedules.schedule import Schedule, loop, require_counts


def one_f_one_b(ranks: int, micro_batches: int) -> Schedule:
    """Return the 1F1B schedule (PipeDream-Flush; Narayanan et al. 2021, arXiv 2104.04473 §2.2.1).

    The bubble is GPipe's, (p - 1)(F + I + W), but rank r keeps at most min(m, p - r) activations.

    Raises:
        ScheduleError: a count is no positive whole number.
    """
    require_counts("1f1b", ranks=ranks, micro_batches=micro_batches)
    steps = tuple(_rank(rank, ranks, micro_batches) for rank in range(ranks))
    return Schedule("1f1b", loop(ranks), micro_batches, steps)


def _rank(rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
    """As many forwards ahead as ranks follow: the first gradient comes back just when they are done."""
    ahead = min(ranks - rank - 1, micro_batches)
    order = [Action(Kind.FORWARD, rank, i) for i in range(ahead)]
    for i in range(ahead, micro_batches):
        order += [Action(Kind.FORWARD, rank, i), Action(Kind.BACKWARD, rank, i - ahead)]
    order += [Action(Kind.BACKWARD, rank, i) for i in range(micro_batches - ahead, micro_batches)]
    return tuple(order)
