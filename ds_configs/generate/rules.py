"""Combinations that DeepSpeed 0.19.8 or HF refuse, ignore or get wrong: each is refused here, with the mend.

A rule is a function that returns the sentence, or None where the request is possible. The line numbers are
those of DeepSpeed 0.19.8 and name what the rule was read from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ds_configs.errors import DsConfigError
from ds_configs.generate.options import AUTO, is_own_pipeline, recipes, section
from ds_configs.pipeline_section import faults

if TYPE_CHECKING:
    from ds_configs.generate.request import ConfigRequest

Rule = Callable[["ConfigRequest"], str | None]


def check_rules(request: ConfigRequest) -> None:
    """Raise DsConfigError with the first rule's sentence that ``request`` breaks."""
    for rule in RULES:
        sentence = rule(request)
        if sentence:
            raise DsConfigError(sentence)


def _offload_needs_a_stage(request: ConfigRequest) -> str | None:
    """Stage 2 ignores offload_param; stage 0 builds a CPU optimizer and offloads nothing."""
    if request.offload_param != "none" and request.stage < 3:
        return (
            f"offload_param={request.offload_param} needs stage 3, because DeepSpeed ignores it at stage "
            f"{request.stage}, where every rank holds all parameters; use stage 3, or offload the optimizer "
            "only"
        )
    if request.offload_optimizer != "none" and request.stage == 0:
        return (
            f"offload_optimizer={request.offload_optimizer} needs a stage from 1 to 3, because stage 0 has "
            "no sharded optimizer state to offload; use stage 1 or more"
        )
    if request.offload_optimizer == "nvme" and request.stage < 3:
        return (
            "offload_optimizer=nvme needs stage 3, because DeepSpeed treats it as cpu at stage "
            f"{request.stage}; use stage 3, or cpu"
        )
    return None


def _nvme_needs_a_path(request: ConfigRequest) -> str | None:
    if request.uses_nvme and not request.nvme_path:
        return "offload to nvme needs a folder on the drive; give nvme_path, such as /local_nvme"
    if request.nvme_path and not request.uses_nvme:
        return (
            f"nvme_path={request.nvme_path} is read only with offload to nvme; offload to it, or drop the "
            "path"
        )
    if request.aio and not request.uses_nvme:
        return f"aio {', '.join(request.aio)} is read only with offload to nvme; offload to it, or drop it"
    return None


def _offload_keys_match_the_device(request: ConfigRequest) -> str | None:
    for name in ("offload_optimizer", "offload_param"):
        device, params = getattr(request, name), getattr(request, f"{name}_params")
        for key in params:
            if device == "none":
                return f"{name} {key} is given without a device; offload to cpu or nvme, or drop it"
            if section(name)[key].device not in ("", device):
                return f"{name} {key} is read only with nvme, not with {device}; drop it"
    ratio = request.offload_optimizer_params.get("ratio")
    if ratio is not None and ratio < 1 and (request.stage < 3 or request.offload_optimizer != "cpu"):
        return (
            f"offload_optimizer ratio={ratio} needs stage 3 and cpu, not stage {request.stage} and "
            f"{request.offload_optimizer}; offload all of it with ratio 1"
        )
    return None


def _zero_keys_match_the_stage(request: ConfigRequest) -> str | None:
    for key, value in request.zero.items():
        stages = section("zero_optimization")[key].stages
        gathers_tp = key == "stage3_gather_16bit_weights_on_model_save" and request.autotp
        if value is not None and request.stage not in stages and not gathers_tp:
            wanted = " or ".join(str(stage) for stage in stages)
            return f"zero {key} is read only at stage {wanted}, not at stage {request.stage}; drop it"
    return None


def _pipeline_combinations(request: ConfigRequest) -> str | None:
    """pipe/engine.py:76 asserts stage < 2; AutoTP and the Trainer need a whole model on each rank."""
    if request.pp == 1:
        if request.pipeline:
            return f"pipeline {', '.join(request.pipeline)} is read only with pp > 1; set pp, or drop it"
        return None
    if request.stage >= 2:
        return (
            f"pp={request.pp} with stage {request.stage} is refused by DeepSpeed, whose pipeline accumulates "
            "whole gradients over micro-batches; use stage 0 or 1"
        )
    if request.target == "hf":
        return (
            f"pp={request.pp} has no pipeline to run in under HF's Trainer, which would train plain data "
            "parallelism without a word; use target deepspeed with a PipelineModule"
        )
    if request.autotp:
        return (
            f"pp={request.pp} with AutoTP (tp={request.tp}) fails in DeepSpeed 0.19.8, whose AutoTP takes "
            "over the process groups; divide layers in the program and say tp_by mpu, or use one of the two"
        )
    if request.zero.get("overlap_comm"):
        return (
            "overlap_comm is switched off by DeepSpeed in a pipeline, which reduces after the last "
            "micro-batch; drop it"
        )
    if is_own_pipeline(request.pipeline):
        given = {key: value for key, value in request.pipeline.items() if value is not None}
        refused = [f"pipeline {key}: {fault.reason}; {fault.mend}" for key, fault in faults(given).items()]
        return next(iter(refused), None)
    if request.stage == 0 and request.dtype == "fp32" and request.clipping not in (None, 0, 0.0):
        return (
            "clipping an fp32 pipeline at stage 0 counts the first pipeline stage's gradients only "
            "(DeepSpeed 0.19.8); use bf16, or clipping 0"
        )
    return _partitioned_needs_tp(request)


def _partitioned_needs_tp(request: ConfigRequest) -> str | None:
    for key in ("pipe_partitioned", "grad_partitioned"):
        if key in request.pipeline and request.tp == 1:
            return f"pipeline {key} divides what stages send over tp ranks, but tp is 1; drop it"
    return None


def _tensor_parallel_combinations(request: ConfigRequest) -> str | None:
    if request.tp_by == "mpu" and request.tp == 1:
        return "tp_by mpu says who divides the layers, but tp is 1; set tp, or drop it"
    if request.tensor_parallel and not request.autotp:
        return (
            f"tensor_parallel {', '.join(request.tensor_parallel)} is AutoTP's, which is off "
            f"(tp={request.tp}, by {request.tp_by}); set tp, or drop it"
        )
    if request.tp_by == "mpu" and request.target == "hf":
        return (
            "tp_by mpu needs a program that hands its mpu to DeepSpeed, which the Trainer does not; use "
            "autotp"
        )
    if request.autotp and request.target == "hf" and request.train_batch != AUTO:
        return (
            f"train_batch={request.train_batch} with AutoTP is counted differently by HF and DeepSpeed, "
            "which both take tp ranks for data-parallel ones; leave it auto and give micro_batch and "
            "accumulation"
        )
    return None


def _precision_combinations(request: ConfigRequest) -> str | None:
    """No optimizer takes a mix at stage 0 (engine.py:2323); fp16 and bf16 exclude each other
    (config.py:511)."""
    for name in ("fp16", "bf16"):
        given = {key for key, value in getattr(request, name).items() if value is not None}
        if given and request.dtype not in (AUTO, name):
            return (
                f"{name} {', '.join(sorted(given))} is given, but the precision is {request.dtype}, and "
                f"DeepSpeed trains in one; choose precision {name}, or drop it"
            )
    wide, states = (
        request.bf16.get(key) for key in ("bf16_master_weights_and_grads", "bf16_optimizer_states")
    )
    if (wide or states) and request.stage == 0:
        return "bf16 master weights and states need ZeRO, but the stage is 0; use stage 1 or more"
    if states and not wide:
        return "bf16_optimizer_states needs bf16_master_weights_and_grads; set both"
    dtype = request.grad_accum_dtype
    if dtype and request.stage == 0 and dtype != request.dtype:
        return (
            f"grad_accum_dtype={dtype} with precision {request.dtype} has no optimizer at stage 0; use stage "
            "1 or more, or drop it"
        )
    return None


def _optimizer_combinations(request: ConfigRequest) -> str | None:
    if request.optimizer is None:
        return None
    recipe = recipes("optimizers")[request.optimizer]
    if request.stage not in recipe.stages:
        stages = " or ".join(str(stage) for stage in recipe.stages)
        return (
            f"optimizer {request.optimizer} is wrong at stage {request.stage}, because {recipe.why_stages}; "
            f"use stage {stages}, or AdamW"
        )
    if request.offload_optimizer != "none" and not recipe.on_host:
        able = ", ".join(name for name, each in recipes("optimizers").items() if each.on_host)
        return (
            f"optimizer {request.optimizer} has no kernel on the host, where offload_optimizer="
            f"{request.offload_optimizer} runs it; use {able}"
        )
    if request.optimizer == "Lamb" and request.fp16.get("loss_scale"):
        return "optimizer Lamb needs dynamic loss scaling; set fp16 loss_scale to 0"
    params = request.optimizer_params
    if params.get("nesterov") and (not params.get("momentum") or params.get("dampening")):
        return "optimizer SGD with nesterov needs a momentum and no dampening; set momentum"
    return None


def _scheduler_combinations(request: ConfigRequest) -> str | None:
    params = request.scheduler_params
    total, warmup = params.get("total_num_steps"), params.get("warmup_num_steps")
    if total is not None and warmup is not None and warmup > total:
        return (
            f"scheduler {request.scheduler}: warmup_num_steps={warmup} is more than total_num_steps={total}, "
            "so the rate would never decay; warm up for fewer steps"
        )
    top, rate = params.get("warmup_max_lr"), request.optimizer_params.get("lr")
    if request.target == "hf" and None not in (top, rate) and top != rate:
        return (
            f"scheduler {request.scheduler}: warmup_max_lr={top} differs from the optimizer's lr={rate}, but "
            "HF wants both to be its --learning_rate; leave one of them auto"
        )
    for low, high in (("warmup_min_lr", "warmup_max_lr"), ("cycle_min_lr", "cycle_max_lr")):
        if params.get(low) is not None and params.get(high) is not None and params[low] > params[high]:
            return (
                f"scheduler {request.scheduler}: {low}={params[low]} is above {high}={params[high]}; swap "
                "them"
            )
    return None


def _activation_checkpointing(request: ConfigRequest) -> str | None:
    """checkpointing.py:1228 asserts partitioning and a number for contiguous memory."""
    section_ = request.activation_checkpointing
    if section_ is None:
        return None
    if request.target == "hf":
        return (
            "activation_checkpointing is read by deepspeed.checkpointing alone, which HF's models do not "
            "use; give the Trainer --gradient_checkpointing instead"
        )
    if section_.get("partition_activations") and request.tp == 1:
        return "partition_activations divides activations over tp ranks, but tp is 1; set tp, or drop it"
    for key in ("cpu_checkpointing", "contiguous_memory_optimization"):
        if section_.get(key) and not section_.get("partition_activations"):
            return f"{key} works only on partitioned activations; set partition_activations too"
    if section_.get("contiguous_memory_optimization") and not section_.get("number_checkpoints"):
        return "contiguous_memory_optimization needs number_checkpoints, the layers to make room for; give it"
    return None


RULES: Iterable[Rule] = (
    _offload_needs_a_stage,
    _nvme_needs_a_path,
    _offload_keys_match_the_device,
    _zero_keys_match_the_stage,
    _pipeline_combinations,
    _tensor_parallel_combinations,
    _precision_combinations,
    _optimizer_combinations,
    _scheduler_combinations,
    _activation_checkpointing,
)
