"""Adapters as peft's own files, and as a plain model that they are merged into."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model
from peft.tuners.lora import Linear
from torch import nn
from transformers import PreTrainedModel

from hf_integration.errors import TrainingInputError
from hf_integration.lora.adapters import Lora
from npu_plugins.checkpoint import save_hf
from npu_plugins.checkpoint.parts import parts_of
from npu_plugins.checkpoint.save import agree
from npu_plugins.comm import ProcessMesh
from npu_plugins.pipeline.hf.draw import without_weights
from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.lora import NAME, merged

PREFIX = "base_model.model."
"""What peft puts before the names of the plain model."""


def save_adapters(module: nn.Module, lora: Lora, mesh: ProcessMesh, directory: str | Path) -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors`` as peft would; every rank calls this.

    Args:
        module: this rank's part of the model, with adapters.
        lora: of them.
        mesh: of the job.
        directory: is made if it is not there.

    Raises:
        CheckpointError: on every rank, if the files cannot be written.
    """
    directory = Path(directory)
    problem: Exception | None = None
    if mesh.rank("dp") == 0:
        parts = parts_of(module, mesh)
        names = [name for name in parts.kinds if ".lora_" in name or name in lora.trained]
        whole = {name: parts.put_together(name, mesh) for name in names}
        if mesh.rank("model") == 0:
            try:
                state = {name: each.contiguous().cpu() for name, each in whole.items() if each is not None}
                _write(parts.model, lora, state, directory)
            except Exception as error:  # whatever it is, the other ranks wait for this one and are told
                problem = error
    agree(problem, mesh, directory)


def _write(model: Any, lora: Lora, state: dict[str, torch.Tensor], directory: Path) -> None:
    """Let peft write the adapters, as of a peft model without weights."""
    skeleton, _ = without_weights(type(model), model.config, model.dtype)
    skeleton = skeleton.to("meta")
    if lora.config.base_model_name_or_path is not None:
        skeleton.name_or_path = lora.config.base_model_name_or_path
    shell = get_peft_model(skeleton, lora.config, adapter_name=lora.name)
    adapted = {f"{path}." for path in lora.adapters}
    named = {peft_name(name, adapted, lora.name): tensor for name, tensor in state.items()}
    with warnings.catch_warnings():
        # peft 0.21 (utils/save_and_load.py) takes the bias of an adapter for a matrix that was not gathered.
        warnings.filterwarnings(
            "ignore", message="Adapter .* LoRA tensor\\(s\\) have invalid shape.*_B.bias:"
        )
        # Targets are no embeddings, and the vocabulary is the base model's: peft need not look for that one.
        shell.save_pretrained(str(directory), state_dict=named, save_embedding_layers=False)


def peft_name(name: str, adapted: set[str], adapter: str) -> str:
    """Return what peft's model calls a parameter of a plain model with adapters.

    Args:
        name: of the parameter.
        adapted: the layers with adapters, each with a dot behind.
        adapter: peft's name of the adapter.
    """
    layer, _, own = name.rpartition(".")
    if ".lora_" in name:
        layer = f"{layer.removesuffix(NAME)}{adapter}"
    elif f"{layer}." in adapted:
        layer = f"{layer}.base_layer"
    return f"{PREFIX}{layer}.{own}"


def save_merged(module: nn.Module, mesh: ProcessMesh, directory: str | Path) -> None:
    """Write a plain Hugging Face directory of a divided model with its adapters merged into its weights.

    Every rank calls this; the model is afterwards as before.

    Raises:
        TrainingInputError: an adapter cannot be merged.
        CheckpointError: the files cannot be written.
    """
    try:
        with merged(getattr(module, "hf_model", module)):
            save_hf(module, mesh, directory)
    except TensorParallelError as error:
        raise TrainingInputError(str(error)) from error


def merged_state(model: PeftModel, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the state of the plain model that a peft model's would be with its one LoRA adapter merged.

    Args:
        model: not divided; its own tensors are not looked at, as under ZeRO-3 they are not whole.
        state: the whole of `model.state_dict()`.

    Raises:
        TrainingInputError: it has another kind of adapter, or one that cannot be merged.
    """
    state = {name.removeprefix(PREFIX): tensor for name, tensor in state.items()}
    for path, layer in model.get_base_model().named_modules():
        if isinstance(layer, Linear):
            _merge(path, layer, state)
    left = [name for name in state if ".lora_" in name or ".base_layer." in name]
    if left:
        raise TrainingInputError(
            f"{left[0]} is of an adapter that is not merged here; save the adapters, and merge them with peft"
        )
    return state


def _merge(path: str, layer: Linear, state: dict[str, torch.Tensor]) -> None:
    names = [name for name in state if name.startswith(f"{path}.")]
    if len(layer.lora_A) != 1:
        raise TrainingInputError(
            f"{path} has adapters {', '.join(layer.lora_A)}, but one is merged; delete the others "
            "(delete_adapter), or merge them with peft"
        )
    (adapter,) = layer.lora_A
    down = state.pop(f"{path}.lora_A.{adapter}.weight")
    up = state.pop(f"{path}.lora_B.{adapter}.weight")
    own = {name: state.pop(name) for name in names if name.startswith(f"{path}.base_layer.")}
    change = up.float() @ down.float() * layer.scaling[adapter]  # [out, rank] × [rank, in]
    changes = {"weight": change.t() if layer.fan_in_fan_out else change}
    bias = state.pop(f"{path}.lora_B.{adapter}.bias", None)
    if bias is not None:
        changes["bias"] = bias.float() * layer.scaling[adapter]
    for name, value in own.items():
        key = name.removeprefix(f"{path}.base_layer.")
        change_here = changes.pop(key, None)
        state[f"{path}.{key}"] = (
            value if change_here is None else (value.float() + change_here).to(value.dtype)
        )
    if changes:
        raise TrainingInputError(
            f"{path} has no {next(iter(changes))} that the adapter's could be added to, so that the adapter "
            "cannot be merged; leave the adapters unmerged, or train without lora_bias"
        )


def save_merged_undivided(trainer: Any, directory: str | Path) -> None:
    """Write a plain Hugging Face directory of a peft model that is not divided; every rank calls this.

    Args:
        trainer: `NpuTrainer`, whose model it is.
        directory: is made if it is not there.

    Raises:
        TrainingInputError: the model has no adapters, or they cannot be merged.
    """
    model = trainer.model
    if not isinstance(model, PeftModel):
        raise TrainingInputError(
            f"the {type(model).__name__} has no adapters that could be merged; give peft_config, or use "
            "save_model"
        )
    state = trainer.accelerator.get_state_dict(trainer.deepspeed or model)
    if not trainer.args.should_save:
        return
    base: PreTrainedModel = model.get_base_model()
    base.save_pretrained(str(directory), state_dict=merged_state(model, state))
