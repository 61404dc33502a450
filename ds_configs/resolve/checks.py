"""What DeepSpeed would refuse, or get wrong, in a configuration that is filled."""

from __future__ import annotations

from ds_configs.errors import DsConfigError
from ds_configs.resolve.document import Document
from ds_configs.resolve.run import TrainingRun
from ds_configs.schema import load_schema

TRIPLE = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def check_result(document: Document, run: TrainingRun) -> None:
    """Raise DsConfigError with the first thing that cannot be."""
    _batch(document, run)
    if document.get("fp16.enabled") is True and document.get("bf16.enabled") is True:
        raise DsConfigError("fp16 and bf16 are both enabled, which DeepSpeed refuses; enable one of them")
    _steps(document)
    _keys(document)


def _batch(document: Document, run: TrainingRun) -> None:
    """DeepSpeed 0.19.8 counts tp ranks of AutoTP as data-parallel, as HF does (config.py:459)."""
    values = [document.get(key) for key in TRIPLE]
    for key, value in zip(TRIPLE, values, strict=True):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise DsConfigError(f'{key} is {value!r}, where DeepSpeed counts; write a whole number or "auto"')
    train, micro, accumulation = values
    if train is None and micro is None:
        raise DsConfigError(
            "the configuration has neither train_batch_size nor train_micro_batch_size_per_gpu; write "
            '"auto" for both'
        )
    divisor = (micro or 1) * (accumulation or 1) * run.world_size
    whole = micro is not None and accumulation is not None
    if train is not None and (train % divisor or (whole and train != divisor)):
        raise DsConfigError(
            f"train_batch_size={train} does not divide into micro-batches of {micro or '1 or more'} × "
            f"accumulation {accumulation or 1} on {run.world_size} ranks; give "
            f"{'' if whole else 'a multiple of '}{divisor}, or another --world-size"
        )


def _steps(document: Document) -> None:
    params = "scheduler.params."
    total, warmup = (document.get(params + name) for name in ("total_num_steps", "warmup_num_steps"))
    for name, value in (("total_num_steps", total), ("warmup_num_steps", warmup)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise DsConfigError(f"{params}{name} is {value!r}; DeepSpeed needs a whole number, 1 or more")
    if total is not None and warmup is not None and warmup > total:
        raise DsConfigError(
            f"{params}warmup_num_steps={warmup} is more than total_num_steps={total}, so the rate would "
            "never decay; lower --warmup_steps, or train longer"
        )


def _keys(document: Document) -> None:
    refusals = load_schema().refusals(document.config)
    if refusals:
        first, more = refusals[0], len(refusals) - 1
        others = f" (and {more} more: `ds-config lint` lists them)" if more else ""
        raise DsConfigError(f"{'.'.join(first.path)} {first.reason}{others}; mend it first")
    ratio = document.get("zero_optimization.offload_optimizer.ratio", 1)
    stage = document.get("zero_optimization.stage", 0)
    if ratio < 1 and stage != 3:
        raise DsConfigError(
            f"zero_optimization.offload_optimizer.ratio={ratio} needs stage 3, but the stage is {stage}; "
            "offload all with ratio 1"
        )
