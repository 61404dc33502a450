"""How a run is divided: the flags and the DeepSpeed configuration brought together, flags first."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ds_configs.errors import DsConfigError
from ds_configs.parallel import ParallelConfig
from hf_integration.errors import TrainingInputError

MINIMAL_CONFIG: Mapping[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "fp16": {"enabled": "auto"},
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 0, "reduce_bucket_size": "auto"},
}
"""The configuration of a run that gives degrees, or --zero_stage, but no --deepspeed FILE.

DeepSpeed's own bucket takes gigabytes on each rank, however small the model; "auto" goes by its width.
"""


@dataclass(frozen=True)
class ParallelFlags:
    """What the command line says; None where it says nothing."""

    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    zero_stage: int | None = None
    pipeline_schedule: str | None = None
    virtual_stages: int | None = None
    recomputation: str | int | None = None
    pipeline_timeline: int | None = None
    """The step whose timeline is measured."""
    timeline_file: str | None = None
    """Where the engine writes it."""


@dataclass(frozen=True)
class ParallelSettings:
    """Degrees of tensor and pipeline parallelism, and the configuration that goes with them.

    Raises:
        TrainingInputError: they exclude each other, or the configuration asks for what cannot be done.
    """

    tp: int = 1
    pp: int = 1
    config: Mapping[str, Any] | None = field(default=None, hash=False)
    """The DeepSpeed configuration with the flags in it; None: without DeepSpeed, or HF's affair alone."""

    def __post_init__(self) -> None:
        if self.divides:
            check_zero(self.config or {}, self.tp, self.pp)

    @property
    def divides(self) -> bool:
        """Whether the model is divided at all: the engine is then made here and not by accelerate."""
        return self.tp * self.pp > 1

    def degrees(self, world_size: int) -> ParallelConfig:
        """Return the degrees of a job of ``world_size`` ranks; what tp and pp leave are replicas.

        Raises:
            TrainingInputError: tp × pp does not divide the ranks.
        """
        try:
            return ParallelConfig.of_world(world_size, self.tp, self.pp)
        except DsConfigError as error:
            raise TrainingInputError(
                f"--tensor_model_parallel_size {self.tp}, --pipeline_model_parallel_size {self.pp}: {error}"
            ) from None


def parallel_settings(flags: ParallelFlags, config: Mapping[str, Any] | None) -> ParallelSettings:
    """Return what ``flags`` and ``config`` ask for together; a flag goes before the configuration.

    Args:
        flags: of the command line.
        config: the DeepSpeed configuration, which stays as it is; None without one.

    Raises:
        TrainingInputError: a degree is no positive number, or something asked for would be ignored.
    """
    merged = copy.deepcopy(dict(MINIMAL_CONFIG if config is None else config))
    tp = _degree(
        flags.tensor_model_parallel_size,
        _section(merged, "tensor_parallel").get("autotp_size"),
        "--tensor_model_parallel_size",
        "tensor_parallel.autotp_size",
    )
    pp = _degree(
        flags.pipeline_model_parallel_size,
        _section(merged, "pipeline").get("stages"),
        "--pipeline_model_parallel_size",
        "pipeline.stages",
    )
    if flags.zero_stage is not None:
        if flags.zero_stage not in range(4):
            raise TrainingInputError(f"--zero_stage is {flags.zero_stage}; give 0, 1, 2 or 3")
        merged["zero_optimization"] = {
            **_section(merged, "zero_optimization"),
            "stage": flags.zero_stage,
        }
    if flags.pipeline_timeline is not None and flags.pipeline_timeline < 1:
        raise TrainingInputError(
            f"--pipeline_timeline is {flags.pipeline_timeline}; give an optimizer step, counted from 1"
        )
    _pipeline_section(merged, flags, pp)
    if tp * pp == 1:
        changed = flags.zero_stage is not None or flags.tensor_model_parallel_size is not None
        if flags.tensor_model_parallel_size is not None:
            merged.pop("tensor_parallel", None)
        wanted = config is not None or flags.zero_stage is not None
        return ParallelSettings(config=merged if wanted and changed else None)
    if tp > 1:
        _check_tensor_parallel(_section(merged, "tensor_parallel"))
    merged.pop("tensor_parallel", None)  # DeepSpeed would divide the model once more
    return ParallelSettings(tp, pp, merged)


def check_zero(config: Mapping[str, Any], tp: int, pp: int) -> None:
    """Refuse what ZeRO cannot do for a divided model.

    Raises:
        TrainingInputError: with what to choose instead.
    """
    zero = _section(config, "zero_optimization")
    stage = zero.get("stage", 0)
    if pp > 1 and stage not in (0, 1):
        raise TrainingInputError(
            f"ZeRO stage {stage} divides the gradients, which a pipeline adds up over its micro-batches; "
            "use --zero_stage 1 (or 0) with --pipeline_model_parallel_size"
        )
    if stage == 3:
        raise TrainingInputError(
            "ZeRO stage 3 divides the parameters that tensor parallelism has divided already; use "
            "--zero_stage 2 or less with --tensor_model_parallel_size"
        )
    for name in ("offload_optimizer", "offload_param"):
        device = _section(zero, name).get("device", "none")
        if device not in (None, "none", "auto"):
            raise TrainingInputError(
                f"zero_optimization.{name}.device is {device!r}, which is offered without tensor and "
                'pipeline parallelism only; write "none"'
            )


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise TrainingInputError(f"{name} is {found!r} in the DeepSpeed configuration; give a section {{…}}")
    return found


def _degree(flag: int | None, value: Any, flag_name: str, key: str) -> int:
    if flag is not None:
        if flag < 1:
            raise TrainingInputError(f"{flag_name} is {flag}; give a whole number of ranks, 1 or more")
        return flag
    if value in (None, "auto", 0) and value is not False:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TrainingInputError(f'{key} is {value!r}; give a whole number of ranks, 1 or more, or "auto"')
    return value


def _pipeline_section(merged: dict[str, Any], flags: ParallelFlags, pp: int) -> None:
    """Put the pipeline's flags into the section ``pipeline``, or refuse them where there is no pipeline."""
    given = {
        "schedule": flags.pipeline_schedule,
        "virtual_stages": flags.virtual_stages,
        "recomputation": flags.recomputation,
    }
    if flags.pipeline_timeline is not None:
        given |= {"trace_steps": flags.pipeline_timeline, "trace_file": flags.timeline_file}
    given = {key: value for key, value in given.items() if value is not None}
    section = dict(_section(merged, "pipeline"))
    if pp == 1:
        asked = sorted({*given, *section} - {"stages"})
        if flags.pipeline_timeline is not None:
            asked = sorted({*asked, "pipeline_timeline"} - {"trace_steps", "trace_file"})
        if asked:
            raise TrainingInputError(
                f'the "pipeline" settings {", ".join(asked)} need stages, of which there is one; give '
                '--pipeline_model_parallel_size N, or "pipeline": {"stages": N}, or remove them '
                "(--gradient_checkpointing recomputes without a pipeline)"
            )
        merged.pop("pipeline", None)
        return
    if "recomputation" in given:
        section.pop("activation_checkpoint_interval", None)
    merged["pipeline"] = {**section, **given, "stages": pp}


def _check_tensor_parallel(section: Mapping[str, Any]) -> None:
    asked = sorted(key for key, value in section.items() if key != "autotp_size" and value)
    if asked:
        raise TrainingInputError(
            f"tensor_parallel.{asked[0]} is a setting of DeepSpeed's AutoTP, but npu_plugins divides the "
            "layers here; leave it out, and keep autotp_size or --tensor_model_parallel_size"
        )
