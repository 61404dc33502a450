"""A MemoryJob from a ds_config.json: what of the file decides about memory, and what "auto" becomes there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ds_configs.config_file import read_config
from ds_configs.errors import DsConfigError
from ds_configs.generate.batch import KEYS, complete_batch
from ds_configs.memory.job import Buckets, MemoryJob
from ds_configs.models import ModelShape
from ds_configs.parallel import ParallelConfig

AUTO = "auto"
# Field of Buckets, key in zero_optimization.
BUCKET_KEYS = {
    "reduce": "reduce_bucket_size",
    "prefetch": "stage3_prefetch_bucket_size",
    "persistence": "stage3_param_persistence_threshold",
    "max_live": "stage3_max_live_parameters",
    "reuse": "stage3_max_reuse_distance",
    "sub_group": "sub_group_size",
}
SWITCH_KEYS = ("overlap_comm", "contiguous_gradients")
# Values that an optimizer keeps for each parameter; DeepSpeed's names, in lower case.
OPTIMIZER_STATES = {
    "adam": 2, "adamw": 2, "fusedadam": 2, "deepspeedcpuadam": 2, "lamb": 2, "onebitadam": 3,
    "zerooneadam": 3, "onebitlamb": 3, "lion": 1, "adagrad": 1, "muadam": 2, "muadamw": 2, "muon": 1,
}  # fmt: skip
DTYPE_NAMES = {
    "fp32": "fp32",
    "float32": "fp32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
}


def read_settings(source: str) -> Mapping[str, Any]:
    """Return the ds_config in file ``source``, or on standard input for ``-``.

    Raises:
        DsConfigError: it cannot be read as one JSON object, or is a model's configuration.
    """
    config = read_config(source)
    if "model_type" in config and "zero_optimization" not in config:
        raise DsConfigError(f"{source} is a model's config.json, not a ds_config; give it to --model")
    return config


def assumptions(config: Mapping[str, Any], **flags: Any) -> list[str]:
    """Return what `job_of_settings` takes for values that ``config`` leaves to HF's flags, in sentences."""
    found = []
    for key, field, taken in (
        ("train_micro_batch_size_per_gpu", "micro_batch", "1"),
        ("gradient_accumulation_steps", "accumulation", "1"),
    ):
        if config.get(key) == AUTO and flags.get(field) is None:
            found.append(f'{key} is "auto": {taken} is taken; give --{field.replace("_", "-")}')
    autos = [key for key in ("fp16", "bf16") if _section(config, key).get("enabled") == AUTO]
    if autos and flags.get("dtype") is None and _dtype(config) is None:
        found.append(f'{" and ".join(autos)}.enabled is "auto": bf16 is taken; give --dtype')
    return found


def job_of_settings(
    config: Mapping[str, Any], shape: ModelShape, parallel: ParallelConfig, **flags: Any
) -> MemoryJob:
    """Return the job that ``config`` describes for ``shape`` and ``parallel``.

    ``flags`` are fields of MemoryJob; one that is not None wins over the file. Bucket sizes that are "auto"
    become what HF fills in (transformers' ``integrations/deepspeed.py``: h², 0.9 h² and 10 h).

    Raises:
        DsConfigError: a value has the wrong type, is "auto" where nothing fills it, or the job is impossible.
    """
    zero = _section(config, "zero_optimization")
    values: dict[str, Any] = {"stage": _integer(zero, "stage", 0), "buckets": buckets_of(zero, shape.hidden)}
    dtype = _dtype(config)
    if dtype:
        values["dtype"] = dtype
    for key, field in (("offload_optimizer", "offload_optimizer"), ("offload_param", "offload_param")):
        device = _section(zero, key).get("device", "none")
        values[field] = "none" if device is None else device
    if values["stage"] != 3:
        values["offload_param"] = "none"  # DeepSpeed ignores it there
    values |= _batch(config, parallel)
    gradient = _section(config, "data_types").get("grad_accum_dtype")
    if gradient is not None:
        values["gradient_dtype"] = DTYPE_NAMES.get(str(gradient), gradient)
    values["optimizer_states"] = _optimizer_states(_section(config, "optimizer"))
    values |= {field: value for field, value in flags.items() if value is not None}
    return MemoryJob(shape=shape, parallel=parallel, **values)


def _batch(config: Mapping[str, Any], parallel: ParallelConfig) -> dict[str, int]:
    """Return micro-batch and accumulation as far as the file says them, or they follow from its train batch.

    DeepSpeed counts the tp ranks of AutoTP as data-parallel ones (config.py:459).
    """
    given = {}
    for name, key in KEYS.items():
        value = config.get(key)
        if value in (None, AUTO):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DsConfigError(f"{key} is {value!r}; give a whole number, 1 or more")
        given[name] = value
    if "train_batch" in given:
        given = complete_batch(given, parallel.dp * tensor_parallel_size(config))
    return {name: given[name] for name in ("micro_batch", "accumulation") if name in given}


def tensor_parallel_size(config: Mapping[str, Any]) -> int:
    """Return ``tensor_parallel.autotp_size`` of a ds_config; 1 where it is not set."""
    return _integer(_section(config, "tensor_parallel"), "autotp_size", 1) or 1


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = config.get(key)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise DsConfigError(f"{key} is {section!r}; it must be an object, as `ds-config lint` explains")
    return section


def _integer(section: Mapping[str, Any], key: str, default: int) -> int:
    value = section.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        raise DsConfigError(f"{key} is {value!r}; it must be a whole number here, so write it out")
    return int(value)


def buckets_of(zero: Mapping[str, Any], hidden: int) -> Buckets:
    """Return the buffers that section ``zero_optimization`` asks for, "auto" as HF fills it for that width.

    Raises:
        DsConfigError: a size is no whole number, or out of range.
    """
    filled = {
        "reduce_bucket_size": hidden**2,
        "stage3_prefetch_bucket_size": int(0.9 * hidden**2),
        "stage3_param_persistence_threshold": 10 * hidden,
    }
    values: dict[str, Any] = {}
    for field, key in BUCKET_KEYS.items():
        if key not in zero:
            continue
        section = {key: filled[key]} if zero[key] == AUTO and key in filled else zero
        values[field] = _integer(section, key, 0)
    for key in SWITCH_KEYS:
        if isinstance(zero.get(key), bool):
            values[key] = zero[key]
    return Buckets(**values)


def _dtype(config: Mapping[str, Any]) -> str | None:
    enabled = {dtype: _section(config, dtype).get("enabled") for dtype in ("fp16", "bf16")}
    for dtype, value in enabled.items():
        if value and value != AUTO:
            return dtype
    return None if AUTO in enabled.values() or not config else "fp32"


def _optimizer_states(optimizer: Mapping[str, Any]) -> int:
    name = str(optimizer.get("type", "adamw")).lower()
    if name == "sgd":
        return 1 if _section(optimizer, "params").get("momentum") else 0
    return OPTIMIZER_STATES.get(name, 2)
