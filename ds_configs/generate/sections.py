"""The sections of a configuration, each from its table and what the request says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ds_configs.buckets import HCCL_BUFFER_BYTES
from ds_configs.errors import DsConfigError
from ds_configs.generate.options import AUTO, Option, is_own_pipeline, recipes, section

if TYPE_CHECKING:
    from ds_configs.generate.request import ConfigRequest

ELEMENT_BYTES = {"fp32": 4, "auto": 4, "bf16": 2, "fp16": 2}


def hccl_bucket(request: ConfigRequest) -> int:
    """Return how many elements fill HCCL's buffer; where HF decides the precision, of the widest."""
    return HCCL_BUFFER_BYTES // ELEMENT_BYTES[request.dtype]


def prefetch_bucket(request: ConfigRequest) -> int:
    """Return HF's 0.9 × hidden² elements, or what HCCL's buffer holds if that is less."""
    return min(int(0.9 * _hidden(request) ** 2), hccl_bucket(request))


def persistence_threshold(request: ConfigRequest) -> int:
    """Return HF's 10 × hidden elements: norms and biases stay whole, matrices do not."""
    return 10 * _hidden(request)


def learning_rate(request: ConfigRequest) -> Any:
    """Return the optimizer's rate, which a warm-up ends at; None where there is none."""
    return request.optimizer_params.get("lr")


RULES = {rule.__name__: rule for rule in (hccl_bucket, prefetch_bucket, persistence_threshold, learning_rate)}


def _hidden(request: ConfigRequest) -> int:
    if request.hidden is None:
        raise DsConfigError(
            "stage 3 for plain DeepSpeed takes its prefetch bucket and persistence threshold from the "
            "model's width; give hidden (or --model), or both zero keys"
        )
    return request.hidden


def filled(
    request: ConfigRequest, options: Mapping[str, Option], given: Mapping[str, Any], owner: str
) -> dict[str, Any]:
    """Return the keys of ``options``, each as given or by default; a key given as None is left out.

    Raises:
        DsConfigError: a key that must be there is neither given nor derivable; ``owner`` is named.
    """
    result: dict[str, Any] = {}
    for key, option in options.items():
        if key in given:
            value = given[key]
        elif option.hf and request.target == "hf":
            value = AUTO
        else:
            value = RULES[option.rule](request) if option.rule else option.value
        if value is None and option.needed:
            raise DsConfigError(f"{owner} needs {key}; give {key}=…")
        if value is not None:
            result[key] = list(value) if isinstance(value, (list, tuple)) else value
    return result


def precision(request: ConfigRequest) -> dict[str, Any]:
    """Return ``fp16`` and ``bf16``: the one asked for, or both for HF's flags to decide between."""
    scaling = filled(request, section("fp16"), request.fp16, "fp16")
    bf16 = filled(request, section("bf16"), request.bf16, "bf16")
    if request.dtype == AUTO:
        return {"fp16": {"enabled": AUTO, **scaling}, "bf16": {"enabled": AUTO, **bf16}}
    if request.dtype == "fp16":
        return {"fp16": {"enabled": True, **scaling}}
    if request.dtype == "bf16":
        return {"bf16": {"enabled": True, **bf16}}
    # Without the sections accelerate would turn one on with the Trainer's flag; so HF says that they
    # disagree.
    return {"fp16": {"enabled": False}, "bf16": {"enabled": False}} if request.target == "hf" else {}


def optimizer(request: ConfigRequest) -> dict[str, Any]:
    """Return ``optimizer``, and the leave ZeRO asks for where it has not been tested with it."""
    if request.optimizer is None:
        return {}
    recipe = recipes("optimizers")[request.optimizer]
    params = filled(request, recipe.params, request.optimizer_params, f"optimizer {request.optimizer}")
    config: dict[str, Any] = {"optimizer": {"type": request.optimizer, "params": params}}
    if recipe.untested and request.stage > 0:
        config["zero_allow_untested_optimizer"] = True
    return config


def scheduler(request: ConfigRequest) -> dict[str, Any]:
    """Return ``scheduler``."""
    if request.scheduler is None:
        return {}
    recipe = recipes("schedulers")[request.scheduler]
    params = filled(request, recipe.params, request.scheduler_params, f"scheduler {request.scheduler}")
    return {"scheduler": {"type": request.scheduler, "params": params}}


def zero_optimization(request: ConfigRequest) -> dict[str, Any]:
    """Return ``zero_optimization``, which accelerate wants at every stage."""
    zero: dict[str, Any] = {"stage": request.stage}
    for name in ("offload_optimizer", "offload_param"):
        device = getattr(request, name)
        if device != "none":
            path = {"nvme_path": request.nvme_path} if device == "nvme" else {}
            params = filled(request, section(name), getattr(request, f"{name}_params"), name)
            zero[name] = {"device": device, **path, **params}
    options = {
        key: each for key, each in section("zero_optimization").items() if request.stage in each.stages
    }
    zero.update(filled(request, options, request.zero, "zero_optimization"))
    gather = "stage3_gather_16bit_weights_on_model_save"
    if request.autotp and gather not in zero and request.zero.get(gather, True):
        zero[gather] = True  # accelerate saves no whole model of AutoTP's without it, at any stage
    return {"zero_optimization": zero}


def parallelism(request: ConfigRequest) -> dict[str, Any]:
    """Return ``pipeline`` and ``tensor_parallel`` where there is such parallelism."""
    config: dict[str, Any] = {}
    if request.pp > 1:
        config["pipeline"] = _pipeline(request)
    if request.autotp:
        extra = filled(request, section("tensor_parallel"), request.tensor_parallel, "tensor_parallel")
        config["tensor_parallel"] = {"autotp_size": request.tp, **extra}
    return config


def _pipeline(request: ConfigRequest) -> dict[str, Any]:
    """Return the block for DeepSpeed's engine, or for npu_plugins' if one of its keys is asked for."""
    if not is_own_pipeline(request.pipeline):
        return filled(request, section("pipeline"), request.pipeline, "pipeline")
    asked = {key: value for key, value in request.pipeline.items() if value is not None}
    return {"stages": request.pp, **asked}


def the_rest(request: ConfigRequest) -> dict[str, Any]:
    """Return the sections that are there only when asked for."""
    config: dict[str, Any] = {}
    if request.activation_checkpointing is not None:
        name = "activation_checkpointing"
        config[name] = filled(request, section(name), request.activation_checkpointing, name)
    if request.uses_nvme:
        config["aio"] = filled(request, section("aio"), request.aio, "aio")
    if request.grad_accum_dtype is not None:
        config["data_types"] = {"grad_accum_dtype": request.grad_accum_dtype}
    if request.steps_per_print is not None:
        config["steps_per_print"] = request.steps_per_print
    return config


def clipping(request: ConfigRequest) -> dict[str, Any]:
    """Return ``gradient_clipping``."""
    if request.clipping is None:
        return {}
    computed = AUTO if request.target == "hf" else 1.0
    return {"gradient_clipping": computed if request.clipping == AUTO else request.clipping}
