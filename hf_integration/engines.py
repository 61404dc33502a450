"""Makes DeepSpeed's engine for a model that is divided over a mesh."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ds_configs.errors import DsConfigError
from ds_configs.resolve import TrainingRun, resolve, width_of_config
from hf_integration.deepspeed_stage0 import restart_step_counts
from hf_integration.errors import TrainingInputError
from hf_integration.npu_arguments import NpuTrainingArguments
from npu_plugins.checkpoint import load_sharded
from npu_plugins.comm import ProcessMesh, count_once
from npu_plugins.errors import NpuPluginsError
from npu_plugins.pipeline import split_model
from npu_plugins.pipeline.hook import initialize
from npu_plugins.tensor_parallel import shard_model


def engine_config(
    args: NpuTrainingArguments, model_config: Any, max_steps: int, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the DeepSpeed configuration of a divided model, every ``"auto"`` filled as the Trainer does.

    Args:
        args: flags and configuration.
        model_config: of transformers; its width fills bucket sizes.
        max_steps: optimizer steps of the run; -1 if they are not known, which a "scheduler" may need.
        given: the configuration to fill; by default that of the arguments.

    Raises:
        TrainingInputError: flags and configuration contradict each other, or DeepSpeed would refuse it.
    """
    settings = args.parallel
    try:
        run = TrainingRun(
            world_size=args.parallel_config.dp,
            per_device_train_batch_size=args.per_device_train_batch_size,
            gradient_accumulation_steps=args.gradient_accumulation_steps,
            max_grad_norm=args.max_grad_norm,
            learning_rate=args.learning_rate,
            adam_beta1=args.adam_beta1,
            adam_beta2=args.adam_beta2,
            adam_epsilon=args.adam_epsilon,
            weight_decay=args.weight_decay,
            warmup_steps=args.get_warmup_steps(max_steps),
            max_steps=max_steps,
            fp16=args.fp16,
            bf16=args.bf16,
            save_on_each_node=args.save_on_each_node,
        )
        width = width_of_config(model_config.to_dict(), "the model's configuration")
        config = resolve(settings.config or {} if given is None else given, run, width).config
    except DsConfigError as error:
        raise TrainingInputError(f"the DeepSpeed configuration: {error}") from error
    # The Trainer clips whether or not the file says so.
    config.setdefault("gradient_clipping", args.max_grad_norm)
    if not config["gradient_clipping"] and settings.pp > 1:
        config["gradient_clipping"] = math.inf  # which only measures, for the log
    config.setdefault("steps_per_print", sys.maxsize)
    config["zero_allow_untested_optimizer"] = True
    if settings.pp > 1 and args.gradient_checkpointing:
        config["pipeline"].setdefault("recomputation", "full")
    return config


def divide(
    model: PreTrainedModel, weights: str | Path | None, mesh: ProcessMesh, config: Mapping[str, Any]
) -> nn.Module:
    """Return this rank's part of the model, with its weights, on the mesh's device.

    Args:
        model: with weights, or built on the meta device: then they are drawn as transformers draws them.
        weights: directory that `save_pretrained` wrote, whose weights a model on the meta device gets.
        mesh: of the job.
        config: of the engine.

    Returns:
        A `PipelineModule` with pipeline stages; else the model itself, with tensor-parallel layers.

    Raises:
        TrainingInputError: the model cannot be divided so.
    """
    try:
        if mesh.size("pp") > 1:
            source = weights if weights is not None else model
            return split_model(source, mesh=mesh, config=config, dtype=model.dtype)
        if weights is not None:
            # Of the model and not of the directory: the Trainer has turned the cache off in it, for example.
            return load_sharded(
                weights, mesh, dtype=model.dtype, model_class=type(model), config=model.config
            )
        if model.device.type == "meta":
            model = type(model)._from_config(model.config, dtype=model.dtype)
        return shard_model(model.to(mesh.device), mesh)
    except NpuPluginsError as error:
        raise TrainingInputError(
            f"{type(model).__name__} cannot be divided over tp {mesh.size('tp')} × pp {mesh.size('pp')} "
            f"ranks: {error}"
        ) from error


def make_engine(
    module: nn.Module, mesh: ProcessMesh, config: dict[str, Any], optimizer: torch.optim.Optimizer | None
) -> Any:
    """Return DeepSpeed's engine for what `divide` returned.

    Args:
        module: this rank's part.
        mesh: of the job.
        config: without "auto".
        optimizer: of this rank's parameters; None: the configuration's, or none.

    Raises:
        TrainingInputError: the configuration asks for what the engine cannot do.
    """
    _check_adagrad(optimizer, config)
    keywords: dict[str, Any] = {"model": module, "config": config, "optimizer": optimizer}
    if optimizer is None and "optimizer" in config:
        keywords["model_parameters"] = [each for each in module.parameters() if each.requires_grad]
    if mesh.size("pp") == 1:
        count_once(module.parameters(), mesh)
        keywords["mpu"] = mesh
    try:
        engine = initialize(**keywords)[0]
    except NpuPluginsError as error:
        raise TrainingInputError(str(error)) from error
    if mesh.size("pp") == 1 and (optimizer is not None or "optimizer" in config):
        restart_step_counts(engine.optimizer)  # a pipeline's engine does so itself
    return engine


def _check_adagrad(optimizer: torch.optim.Optimizer | None, config: Mapping[str, Any]) -> None:
    """Refuse Adagrad with ZeRO, which makes it anew with one group of parameters and steps each of several.

    DeepSpeed 0.19.8 (zero/stage_1_and_2.py:947, :2969). The weight decay of the groups is gone too.
    """
    stage = config.get("zero_optimization", {}).get("stage", 0)
    named = str(config.get("optimizer", {}).get("type", "")).lower() if optimizer is None else ""
    if stage and (named == "adagrad" or isinstance(optimizer, torch.optim.Adagrad)):
        raise TrainingInputError(
            f"Adagrad with ZeRO stage {stage} fails in DeepSpeed, which loses its groups of parameters; use "
            "--zero_stage 0, or AdamW"
        )
