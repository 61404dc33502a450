"""The schedules by the names users write."""

from __future__ import annotations

from npu_plugins.pipeline.errors import ScheduleError
from npu_plugins.pipeline.schedules.collector import without_collector
from npu_plugins.pipeline.schedules.dualpipe_v import dualpipe_v
from npu_plugins.pipeline.schedules.evaluation import evaluation
from npu_plugins.pipeline.schedules.gpipe import gpipe
from npu_plugins.pipeline.schedules.interleaved import interleaved
from npu_plugins.pipeline.schedules.one_f_one_b import one_f_one_b
from npu_plugins.pipeline.schedules.schedule import Schedule, loop, require_counts
from npu_plugins.pipeline.schedules.zb_h1 import zb_h1
from npu_plugins.pipeline.schedules.zb_v import zb_v

_ONE_STAGE = {"gpipe": gpipe, "1f1b": one_f_one_b, "zb-h1": zb_h1}
_VEE = {"zb-v": zb_v, "dualpipe-v": dualpipe_v}

TRAINING_SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v")
"""In the order in which they were published, which is also that of their bubbles."""
SCHEDULES = (*TRAINING_SCHEDULES, "eval")


def chunks_of(name: str, virtual_stages: int | None = None) -> int:
    """Return how many stages each rank holds under schedule `name`, where a user asks for `virtual_stages`.

    Raises:
        ScheduleError: no schedule has this name, or it cannot have that many.
    """
    if name not in SCHEDULES:
        raise ScheduleError(f"there is no schedule {name!r}; choose one of {', '.join(SCHEDULES)}")
    fixed = 1 if name in _ONE_STAGE else 2 if name in _VEE else None
    if virtual_stages is None:
        return fixed or (2 if name == "interleaved" else 1)
    require_counts(name, virtual_stages=virtual_stages)
    if name == "interleaved" and virtual_stages == 1:
        raise ScheduleError(
            "schedule interleaved with virtual_stages 1 is 1f1b: ask for that, or for 2 or more"
        )
    if fixed not in (None, virtual_stages):
        raise ScheduleError(
            f"schedule {name} has {fixed} stage{'s' * (fixed == 2)} on each rank, not {virtual_stages}: "
            "leave virtual_stages out, or use interleaved for any number"
        )
    return virtual_stages


@without_collector
def build_schedule(name: str, ranks: int, micro_batches: int, virtual_stages: int | None = None) -> Schedule:
    """Return schedule `name`, compute only.

    Args:
        name: one of `SCHEDULES`. For an evaluation on a V call `evaluation` with the training schedule's
        placement.
        ranks: p.
        micro_batches: m, of one optimizer step on one replica.
        virtual_stages: v, stages on each rank; by default 2 for interleaved, zb-v and dualpipe-v, else 1.

    Raises:
        ScheduleError: no schedule has this name, or it does not exist for these numbers.
    """
    chunks = chunks_of(name, virtual_stages)
    if name == "eval":
        require_counts(name, ranks=ranks)
        return evaluation(loop(ranks, chunks), micro_batches)
    if name == "interleaved":
        return interleaved(ranks, micro_batches, chunks)
    return {**_ONE_STAGE, **_VEE}[name](ranks, micro_batches)
