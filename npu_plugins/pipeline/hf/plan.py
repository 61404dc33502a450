"""Which layers each rank of a pipeline would hold, found without ranks, groups or weights."""

from __future__ import annotations

from typing import Any

from npu_plugins.pipeline.config import PipelineConfig
from npu_plugins.pipeline.hf.draw import without_weights
from npu_plugins.pipeline.hf.families import family_of
from npu_plugins.pipeline.hf.layers import DecoderLayer
from npu_plugins.pipeline.hf.module import layer_specs
from npu_plugins.pipeline.partition import cut
from npu_plugins.pipeline.schedules.registry import build_schedule


def planned_layers(model: Any, ranks: int, settings: PipelineConfig) -> list[dict[int, list[str]]]:
    """Return the modules of each pipeline rank, by its stages, as `split_model` would divide them.

    Args:
        model: of transformers; its weights are not looked at, and it may be on the meta device.
        ranks: of the pipeline.
        settings: schedule, virtual stages and partition. Partition time is measured when a job starts; here
            parameters stand for it.

    Raises:
        PipelineError: the model cannot be split, or has fewer layers than stages.
        ScheduleError: the schedule does not exist for so many ranks.
    """
    skeleton, _ = without_weights(type(model), model.config, model.dtype)
    specs = layer_specs(skeleton, family_of(type(model), model.config))
    schedule = build_schedule(settings.schedule, ranks, 2 * ranks, settings.virtual_stages)
    placement = schedule.placement
    given = settings.partition if "partition" in settings.given else "parameters"
    bounds = cut(specs, placement.stages, "parameters" if given == "time" else given)
    names = [_paths(spec) for spec in specs]
    return [
        {
            stage: [name for layer in names[bounds[stage] : bounds[stage + 1]] for name in layer]
            for stage in placement.stages_of(rank)
        }
        for rank in range(ranks)
    ]


def _paths(spec: Any) -> list[str]:
    """Return the paths, within the model, of the modules of a layer."""
    if spec.typename is DecoderLayer:
        return [spec.module_args[0]]
    parts = spec.module_kwargs
    if getattr(spec, "forward_fn", None) is not None:  # the second place of a tied embedding: the head
        return [parts["head"][0]]
    return [path for name, (path, _) in parts.items() if not (name == "head" and "embedding" in parts)]
