"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from npu_plugins.pipeline.schedules.actions import Action, Kind
from npu_plugins.pipeline.schedules.schedule import Schedule, loop, require_counts


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """Return the GPipe schedule (Huang et al., arXiv 1811.06965 §2.3).

    The bubble is (p - 1)(F + I + W), and every rank keeps the activations of all m micro-batches. The
    backward begins with the last micro-batch, whose activations are the youngest.

    Raises:
        ScheduleError: a count is no positive whole number.
    """
    require_counts("gpipe", ranks=ranks, micro_batches=micro_batches)
    steps = tuple(
        (
            *(Action(Kind.FORWARD, rank, i) for i in range(micro_batches)),
            *(Action(Kind.BACKWARD, rank, i) for i in reversed(range(micro_batches))),
        )
        for rank in range(ranks)
    )
    return Schedule("gpipe", loop(ranks), micro_batches, steps)
