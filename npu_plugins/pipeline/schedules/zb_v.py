"""ZB-V: two chunks per rank in the shape of a V, and the backward split; no bubble when F = I = W."""

from __future__ import annotations

from npu_plugins.pipeline.schedules.actions import Action
from npu_plugins.pipeline.schedules.phases import expand
from npu_plugins.pipeline.schedules.schedule import Schedule, require_counts, vee


def zb_v(ranks: int, micro_batches: int) -> Schedule:
    """Return the ZB-V schedule (Qi et al., arXiv 2401.10241 §6; 2405.15362).

    When F = I = W no rank waits between its first and its last action; the ranks start and end (p - 1) F / 2
    apart. Each keeps min(m, p) activations: 2p chunks of half a rank's share, evenly over the ranks.

    Raises:
        ScheduleError: a count is no positive whole number.
    """
    require_counts("zb-v", ranks=ranks, micro_batches=micro_batches)
    placement = vee(ranks)
    steps = tuple(_rank(rank, ranks, micro_batches, placement.stages_of(rank)) for rank in range(ranks))
    return Schedule("zb-v", placement, micro_batches, steps)


def _rank(rank: int, ranks: int, micro_batches: int, stages: tuple[int, ...]) -> tuple[Action, ...]:
    """Fill the V until the first micro-batch is back, then take turns between its arms.

    The order is that of at least 2p - 1 micro-batches, which fill the pipeline; those that are not there are
    left out on all ranks alike.
    """
    full = max(micro_batches, 2 * ranks - 1)
    draining = ranks - rank - 1
    phases = [
        (2 * (ranks - rank) - 1, "F0"),
        (rank, "F1 F0"),
        (ranks - rank, "F1 I1 W"),
        (full - ranks - draining, "F0 I0 W F1 I1 W"),
        (draining, "I0 W F1 I1 W"),
        (rank, "I0 I1"),
        (ranks - rank, "I0 W"),
        (2 * rank, "W"),
    ]
    return tuple(action for action in expand(phases, stages) if action.micro_batch < micro_batches)
