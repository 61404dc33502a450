"""From peft's model to a divided one with the same adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear
from torch import nn
from transformers import PreTrainedModel, set_seed

from hf_integration.errors import TrainingInputError
from hf_integration.lora.checks import only_adapter, trained_of_base
from npu_plugins.comm import ProcessMesh
from npu_plugins.errors import NpuPluginsError
from npu_plugins.tensor_parallel.lora import Adapter, insert_adapters
from npu_plugins.tensor_parallel.sharding import check_same_tensors


def adapted(model: Any, config: Any, args: Any, divides: bool) -> tuple[Any, Lora | None]:
    """Return the model that the Trainer is to have, and the adapters that it gets once it is divided.

    Args:
        model: of the user, plain or peft's.
        config: peft's, or None.
        args: the Trainer's, of which the seed is taken.
        divides: whether the model will be divided.

    Raises:
        TrainingInputError: model and configuration exclude each other, or cannot be divided.
    """
    if config is not None:
        model = wrap(model, config, args.seed)
    return take_apart(model) if divides and isinstance(model, PeftModel) else (model, None)


def wrap(model: PreTrainedModel, config: Any, seed: int) -> PeftModel:
    """Return peft's model of a base model and a configuration, its adapters drawn after `seed`.

    A base model on the meta device gets the adapters that it would have with weights, on the CPU.

    Raises:
        TrainingInputError: the model has adapters already, or peft refuses the configuration.
    """
    if isinstance(model, PeftModel):
        raise TrainingInputError(
            "model is a PeftModel, which has its adapters, but peft_config asks for others; give one of them"
        )
    set_seed(seed)
    try:
        wrapped = get_peft_model(model, config)
    except ValueError as error:
        raise TrainingInputError(f"peft refuses peft_config: {str(error).splitlines()[0]}") from error
    if model.device.type == "meta" and isinstance(config, LoraConfig):
        set_seed(seed)
        _draw(wrapped, config)
    return wrapped


def _draw(wrapped: PeftModel, config: LoraConfig) -> None:
    """Draw what peft has drawn on the meta device, in its order, in which it makes layers and draws again."""
    for _, layer in _lora_layers(wrapped):
        (name,) = layer.lora_A
        down, up = layer.lora_A[name], layer.lora_B[name]
        dtype, held = down.weight.dtype, layer.get_base_layer().weight.dtype
        layer.lora_A[name] = nn.Linear(down.in_features, down.out_features, bias=False)
        layer.lora_B[name] = nn.Linear(up.in_features, up.out_features, bias=up.bias is not None)
        if config.init_lora_weights:
            layer.reset_lora_parameters(name, config.init_lora_weights)
        for module in (layer.lora_A[name], layer.lora_B[name]):
            module.to(held).to(dtype)  # through the base's dtype, as in peft


def _lora_layers(model: PeftModel) -> Iterator[tuple[str, Linear]]:
    for name, module in model.get_base_model().named_modules():
        if isinstance(module, Linear):
            yield name, module


@dataclass(frozen=True)
class Lora:
    """The adapters of a model that is divided."""

    config: LoraConfig
    name: str
    """Of the adapter, in peft."""
    adapters: Mapping[str, Adapter]
    """By the name of the layer in the plain model."""
    trained: frozenset[str]
    """Parameters of the plain model that are trained besides."""

    def insert(self, module: nn.Module, mesh: ProcessMesh) -> None:
        """Put the adapters on the layers of this rank's part of the model, and freeze all else.

        Args:
            module: what `engines.divide` returned.
            mesh: of the job; every rank calls this.

        Raises:
            TrainingInputError: a layer cannot have its adapter, ranks have different ones, or a rank has
                nothing to train.
        """
        whole: nn.Module = getattr(module, "hf_model", module)
        group = mesh.group("model")
        try:
            if group is not None:
                check_same_tensors(self._tensors(mesh), "the adapters", group)
            streams = getattr(whole, "random_streams", None)
            insert_adapters(whole, self.adapters, mesh.group("tp"), streams)
        except NpuPluginsError as error:
            raise TrainingInputError(f"the adapters cannot be divided: {error}") from error
        for name, parameter in whole.named_parameters():
            parameter.requires_grad_(".lora_" in name or name in self.trained)
        self._check_something_trains(module, mesh)

    def _tensors(self, mesh: ProcessMesh) -> dict[str, torch.Tensor]:
        found = {}
        for name, adapter in self.adapters.items():
            for key, tensor in (("lora_A", adapter.down), ("lora_B", adapter.up)):
                found[f"{name}.{key}"] = tensor.to(mesh.device)
        return found

    def _check_something_trains(self, module: nn.Module, mesh: ProcessMesh) -> None:
        group = mesh.group("pp")
        if group is None:
            return
        own = sum(parameter.requires_grad for parameter in module.parameters())
        counts = [torch.zeros((), dtype=torch.int64, device=mesh.device) for _ in range(group.size())]
        dist.all_gather(counts, torch.tensor(own, device=mesh.device), group=group)
        idle = [str(rank) for rank, count in enumerate(counts) if not count]
        if idle:
            raise TrainingInputError(
                f"pipeline rank {', '.join(idle)} of {group.size()} has no layer with an adapter, and so "
                "nothing to train; name target modules in the layers of every rank, or use fewer with "
                "--pipeline_model_parallel_size"
            )


def take_apart(model: PeftModel) -> tuple[PreTrainedModel, Lora]:
    """Return the plain model and its adapters; the peft model is of no use afterwards.

    Raises:
        TrainingInputError: its adapters cannot be trained in a divided model.
    """
    name = only_adapter(model)
    trained = trained_of_base(model, name)
    adapters = {}
    for path, layer in _lora_layers(model):
        down, up, dropout = layer.lora_A[name], layer.lora_B[name], layer.lora_dropout[name]
        adapters[path] = Adapter(
            down.weight.detach(),
            up.weight.detach(),
            scaling=layer.scaling[name],
            dropout=dropout.p if isinstance(dropout, nn.Dropout) else 0.0,
            bias=None if up.bias is None else up.bias.detach(),
        )
    base = model.unload()
    base.requires_grad_(True)  # stages are cut by the parameters of the whole model
    return base, Lora(model.peft_config[name], name, adapters, trained)
