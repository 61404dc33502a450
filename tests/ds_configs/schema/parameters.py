"""Parameters of the optimizers and schedulers that DeepSpeed builds, from their constructors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tests.ds_configs.schema.models import JSON_TYPES, Fields, plain

# What DeepSpeed passes itself, so that a configuration must not.
OWN_ARGUMENTS = {
    "self",
    "params",
    "model_params",
    "param_groups",
    "optimizer",
    "args",
    "kwargs",
    "last_batch_iteration",
}
# Where the default alone does not tell the types.
TYPES: dict[str, list[str]] = {
    "betas": ["list"],
    "foreach": ["bool", "null"],
    "fused": ["bool", "null"],
    "comm_backend_name": ["str"],
    "cycle_second_step_size": ["int", "null"],
    "cycle_second_stair_count": ["int", "null"],
    "warmup_min_lr": ["float", "list"],
    "warmup_max_lr": ["float", "list", "null"],
    "lr_range_test_min_lr": ["float", "list"],
    "cycle_min_lr": ["float", "list"],
    "cycle_max_lr": ["float", "list"],
    "cycle_min_mom": ["float", "list"],
    "cycle_max_mom": ["float", "list"],
    "total_num_steps": ["int"],
}
# Constructor arguments that hold real numbers although their default is a whole one.
REAL = {
    "lr",
    "eps",
    "weight_decay",
    "momentum",
    "dampening",
    "lr_decay",
    "initial_accumulator_value",
    "max_coeff",
}
CHOICES: dict[str, list[Any]] = {"warmup_type": ["log", "linear"], "ns_method": ["gram", "standard"]}
# Type as configurations write it: the classes that DeepSpeed may build for it.
OPTIMIZERS: dict[str, list[str]] = {
    "Adam": ["deepspeed.ops.adam:FusedAdam", "deepspeed.ops.adam:DeepSpeedCPUAdam", "torch.optim:Adam"],
    "AdamW": ["deepspeed.ops.adam:FusedAdam", "deepspeed.ops.adam:DeepSpeedCPUAdam", "torch.optim:AdamW"],
    "Adagrad": ["torch.optim:Adagrad", "deepspeed.ops.adagrad:DeepSpeedCPUAdagrad"],
    "Lamb": ["deepspeed.ops.lamb:FusedLamb"],
    "Lion": ["deepspeed.ops.lion:FusedLion", "deepspeed.ops.lion:DeepSpeedCPULion"],
    "OneBitAdam": ["deepspeed.runtime.fp16.onebit.adam:OnebitAdam"],
    "ZeroOneAdam": ["deepspeed.runtime.fp16.onebit.zoadam:ZeroOneAdam"],
    "OneBitLamb": ["deepspeed.runtime.fp16.onebit.lamb:OnebitLamb"],
    "SGD": ["torch.optim:SGD"],
}
# Read by DeepSpeed's engine before the constructor sees the rest; adam_w_mode is the engine's own there.
ENGINE_PARAMETERS: dict[str, Fields] = {
    "torch_adam": {"types": ["bool"], "default": False},
    "adam_w_mode": {"types": ["bool"], "default": True},
}
HIDDEN = {"adamw_mode", "overlap_step", "max_grad_norm", "deepspeed", "decoupled_weight_decay"}
MUON_DEFAULTS = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0, "betas": [0.9, 0.95], "eps": 1e-10}
SCHEDULERS = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest")


def optimizer_variants(known: list[str]) -> dict[str, dict[str, Fields]]:
    """Return the parameters of each optimizer type; ``known`` are the types this DeepSpeed builds itself."""
    found: dict[str, dict[str, Fields]] = {}
    for name, classes in OPTIMIZERS.items():
        if name.lower() not in known and name != "SGD":
            continue
        parameters: dict[str, Fields] = {}
        for where in classes:
            for parameter, fields in _parameters_of(_load(where), where).items():
                parameters.setdefault(parameter, fields)
        if name in ("Adam", "AdamW"):
            parameters.update({key: dict(fields) for key, fields in ENGINE_PARAMETERS.items()})
        found[name] = parameters
    if "muon" in known:
        found["Muon"] = _muon()
    return found


def scheduler_variants() -> dict[str, dict[str, Fields]]:
    """Return the parameters of each of DeepSpeed's own schedulers."""
    module = "deepspeed.runtime.lr_schedules"
    return {name: _parameters_of(_load(f"{module}:{name}"), f"{module}:{name}") for name in SCHEDULERS}


def _muon() -> dict[str, Fields]:
    """Muon's groups are built by the engine, whose code names what each half takes."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    engine = inspect.getsource(DeepSpeedEngine)
    names = ["lr", "momentum", "weight_decay", "betas", "eps"]
    names += [name for name in ("ns_method", "muon_lr", "adam_lr") if f'"{name}"' in engine]
    fields: dict[str, Fields] = {}
    for name in names:
        fields[name] = {"types": TYPES.get(name, ["float"]), "source": "runtime/engine.py"}
        if name in CHOICES:
            fields[name].update(types=["str"], choices=CHOICES[name], default=CHOICES[name][0])
        if name in MUON_DEFAULTS:
            fields[name]["default"] = MUON_DEFAULTS[name]
    if hasattr(DeepSpeedEngine, "get_optimizer_configuration"):  # its Adam half is configured as Adam is
        half = {**ENGINE_PARAMETERS, "fp32_optimizer_states": {"types": ["bool"], "default": True}}
        fields.update({name: {**one, "source": "runtime/engine.py"} for name, one in half.items()})
    return fields


def _load(where: str) -> Callable[..., Any]:
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


def _parameters_of(built: Callable[..., Any], where: str) -> dict[str, Fields]:
    found: dict[str, Fields] = {}
    for name, parameter in inspect.signature(built.__init__).parameters.items():
        if name in OWN_ARGUMENTS | HIDDEN:
            continue
        fields: Fields = {"types": _types(name, parameter.default), "source": where.partition(":")[2]}
        if parameter.default is inspect.Parameter.empty:
            fields["required"] = True
        else:
            fields["default"] = plain(parameter.default)
        if name in CHOICES:
            fields["choices"] = CHOICES[name]
        found[name] = fields
    return found


def _types(name: str, default: Any) -> list[str]:
    if name in TYPES:
        return TYPES[name]
    if name in REAL:
        return ["float"]
    if type(default) not in JSON_TYPES or default is None:
        raise TypeError(f"the parameter {name} has the default {default!r}: say its types in TYPES")
    return [JSON_TYPES[type(default)]]
