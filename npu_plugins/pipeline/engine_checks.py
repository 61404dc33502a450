"""What a pipeline cannot do, refused before anything is built, with what to do instead."""

from __future__ import annotations

from typing import Any

from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from npu_plugins.pipeline.config import PipelineConfig
from npu_plugins.pipeline.errors import PipelineError
from npu_plugins.pipeline.module import PipelineModule
from npu_plugins.pipeline.schedules.registry import build_schedule


def check_settings(settings: PipelineConfig, module: PipelineModule, config: Any) -> None:
    """Compare a DeepSpeed configuration with the module and with what pipelines can do.

    Args:
        settings: its section ``pipeline``.
        module: the model, built already.
        config: DeepSpeed's `DeepSpeedConfig`.

    Raises:
        PipelineError: they disagree, or ZeRO's stage, overlap_comm or AutoTP does not go with a pipeline.
        ScheduleError: the schedule does not exist for so many micro-batches.
    """
    zero = config.zero_config
    if zero.stage > 1:
        raise PipelineError(
            f"zero_optimization.stage is {int(zero.stage)} with a pipeline: ZeRO-2 and ZeRO-3 reduce and "
            "free each "
            "gradient as soon as it is computed, but a pipeline adds up those of all micro-batches first, "
            "and would do so once for each; use stage 1, which divides the optimizer's state, or stage 0"
        )
    if zero.stage == 1 and zero.overlap_comm:
        raise PipelineError(
            "zero_optimization.overlap_comm is true with a pipeline: it reduces gradients in hooks that "
            "fire before "
            'the last micro-batch, and not for deferred weight gradients; set "overlap_comm": false'
        )
    autotp = getattr(config.tensor_parallel_config, "autotp_size", 0)
    if autotp > 1:
        raise PipelineError(
            f"tensor_parallel.autotp_size is {autotp} with a pipeline: AutoTP divides layers that it finds "
            "in a whole Hugging Face model; leave it out, and give split_model a mesh with tp"
        )
    given = {
        "stages": (settings.stages, module.num_stages, "num_stages"),
        "schedule": (settings.schedule, module.schedule_name, "schedule"),
        "virtual_stages": (settings.virtual_stages, module.placement.chunks, "virtual_stages"),
        "recomputation": (settings.recomputed_layers, module.activation_checkpoint_interval, "config"),
        "seed_layers": (settings.seed_layers, module.seed_layers, "seed_layers"),
    }
    for key, (configured, built, argument) in given.items():
        if key in settings.given and configured != built:
            raise PipelineError(
                f"pipeline.{key} is {configured!r} in the configuration, but the PipelineModule was built "
                "with "
                f"{built!r}; give PipelineModule {argument}= what you want (config= takes the whole "
                "configuration)"
            )
    micro_batches = config.gradient_accumulation_steps
    build_schedule(module.schedule_name, module.num_stages, micro_batches, module.virtual_stages)


def check_optimizer(engine: Any) -> None:
    """Refuse an engine whose gradients would be lost, or whose ranks would wait for each other for ever.

    Every rank of the world calls this.

    Raises:
        PipelineError: ZeRO-1 was asked for, but the optimizer divides gradients; or stages have different
            numbers of parameter groups.
    """
    optimizer = engine.optimizer
    if getattr(optimizer, "partition_gradients", False) or getattr(optimizer, "overlap_comm", False):
        raise PipelineError(
            f"the optimizer {type(optimizer).__name__} reduces gradients during the backward pass, "
            "which does not go with a pipeline; use ZeRO stage 0 or 1 without overlap_comm"
        )
    if not isinstance(optimizer, DeepSpeedZeroOptimizer):
        return
    # It sums each group's norm over all stages by itself (stage_1_and_2.py:2951, DeepSpeed 0.19.8).
    counts = engine.module.control.of_pipeline(len(optimizer.param_groups))
    if len(set(counts)) > 1:
        told = ", ".join(f"{count} on pipeline rank {rank}" for rank, count in enumerate(counts))
        raise PipelineError(
            f"the numbers of parameter groups differ: {told}; ZeRO-1 sums the gradient norm group by group, "
            "and the ranks with more would wait for ever: cut the layers so that every rank has a parameter "
            "of each group, put all parameters into one group, or use ZeRO stage 0"
        )
