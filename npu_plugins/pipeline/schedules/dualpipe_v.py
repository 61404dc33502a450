"""DualPipeV: two chunks per rank in the shape of a V, forwards of one arm beside backwards of the other."""

from __future__ import annotations

from npu_plugins.pipeline.errors import ScheduleError
from npu_plugins.pipeline.schedules.actions import Action
from npu_plugins.pipeline.schedules.phases import expand
from npu_plugins.pipeline.schedules.schedule import Schedule, require_counts, vee


def dualpipe_v(ranks: int, micro_batches: int) -> Schedule:
    """Return the DualPipeV schedule (DeepSeek's DualPipe, arXiv 2412.19437 §3.2.1, cut in half).

    In the steady state a forward of one chunk and a whole backward of the other follow each other, so that an
    executor may run the communication within one beside the compute of the other. Backwards are split only
    where that shortens the ends. A rank keeps at most p + 1/2 activations.

    Raises:
        ScheduleError: a count is no positive whole number, or there are fewer micro-batches than stages.
    """
    require_counts("dualpipe-v", ranks=ranks, micro_batches=micro_batches)
    if micro_batches < 2 * ranks:
        raise ScheduleError(
            f"schedule dualpipe-v on {ranks} ranks needs {2 * ranks} micro-batches or more, not "
            f"{micro_batches}, to fill both arms of the V: raise gradient_accumulation_steps or use zb-v"
        )
    placement = vee(ranks)
    steps = tuple(_rank(rank, ranks, micro_batches, placement.stages_of(rank)) for rank in range(ranks))
    return Schedule("dualpipe-v", placement, micro_batches, steps)


def _rank(rank: int, ranks: int, micro_batches: int, stages: tuple[int, ...]) -> tuple[Action, ...]:
    """The eight steps of DualPipe. Of the sixth, r + 1 backwards at both chunks, the last half is split."""
    behind = ranks - rank - 1
    whole, split = (rank + 1) // 2, (rank + 1) % 2
    phases = [
        (2 * behind, "F0"),
        (rank + 1, "F0 F1"),
        (behind, "I1 W F1"),
        (micro_batches - 2 * ranks + rank + 1, "F0 B1 F1 B0"),
        (behind, "B1 F1 B0"),
        (whole, "B1 B0"),
        (split, "B1 I0"),
        (whole, "I1 I0"),
        (behind, "W I0"),
        (rank + 1, "W"),
    ]
    return tuple(expand(phases, stages))
