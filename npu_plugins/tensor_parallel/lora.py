"""Low-rank adapters (LoRA, arXiv 2106.09685) on the layers of a divided model.

An adapter adds scaling · B(A(dropout(x))) to a layer's output. Where the layer's outputs are divided over the
tensor-parallel group, A is whole and B is divided like the layer; where its inputs are divided, A is divided
and B whole, and what is summed over the ranks are the few numbers between the two. The whole ones get whole
gradients on every rank: B's input gradient is summed in the first case, A's output in the second.

An adapter hangs on its layer, which stays the same object under the same name: its matrices are the layer's
``lora_A.default`` and ``lora_B.default``, as in peft, and a forward hook adds what they compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.filling import filled_like, full_shape, take_local
from npu_plugins.tensor_parallel.linear import ColumnParallelLinear, ParallelLinear, RowParallelLinear
from npu_plugins.tensor_parallel.merged import MergedColumnParallelLinear, SharedColumnParallelLinear
from npu_plugins.tensor_parallel.random import RandomStreams, ReplicatedDropout, ShardedDropout
from npu_plugins.tensor_parallel.replacements import StackedColumnParallelLinear
from npu_plugins.tensor_parallel.shard import shard_of

NAME = "default"
"""What peft calls the adapter of a model that has one."""

PARTS = ("lora_A", "lora_B", "lora_dropout")
"""The children that a layer gets with an adapter."""


@dataclass(frozen=True)
class Adapter:
    """The adapter of one layer, whole."""

    down: torch.Tensor
    """A, `[rank, in]`."""
    up: torch.Tensor
    """B, `[out, rank]`."""
    scaling: float
    dropout: float = 0.0
    """Probability with which an element of the input is dropped while training."""
    bias: torch.Tensor | None = None
    """Of B, `[out]`."""


class AddAdapter:
    """The forward hook of a layer that has an adapter."""

    def __init__(self, scaling: float) -> None:
        self.scaling = scaling

    def __call__(self, layer: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Return the layer's output with the adapter's added, in the output's dtype."""
        down, up = layer.lora_A[NAME], layer.lora_B[NAME]
        x = layer.lora_dropout[NAME](args[0].to(down.weight.dtype))
        return (output + up(down(x)) * self.scaling).to(output.dtype)


def insert_adapters(
    model: nn.Module,
    adapters: Mapping[str, Adapter],
    group: dist.ProcessGroup | None = None,
    streams: RandomStreams | None = None,
) -> None:
    """Give layers of a model adapters, each divided as its layer is.

    Args:
        model: as `shard_model` left it, or never divided. Layers on the meta device, which are other stages'
            of a pipeline, get adapters without values.
        adapters: by the name of the layer.
        group: the tensor-parallel group that the model is divided over.
        streams: of that group; needed where there is dropout.

    Raises:
        TensorParallelError: a layer is none that can have an adapter, or of other sizes than it. The model is
            then as it was.
    """
    branches = {}
    for name, adapter in adapters.items():
        layer = model.get_submodule(name)
        branches[name] = _branch(name, layer, adapter)
        branches[name]["lora_dropout"] = _dropout(layer, adapter.dropout, group, streams)
    for name, adapter in adapters.items():
        layer = model.get_submodule(name)
        _fill(branches[name], adapter, layer.weight, group)
        for key, module in branches[name].items():
            layer.add_module(key, nn.ModuleDict({NAME: module.train(layer.training)}))
        # Before hooks that were there: what they do to the output, they do to the adapter's as well.
        hook = AddAdapter(adapter.scaling)
        layer.lora_hook = hook, layer.register_forward_hook(hook, prepend=True)


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the name and the module of each layer that has an adapter."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_hook"):
            yield name, module


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """Within: each adapter is part of its layer's weight, and the model has the parameters it had before.

    Weights are afterwards those from before, bit for bit; meanwhile the CPU keeps a copy of what changes.

    Raises:
        TensorParallelError: an adapter has a bias, but its layer has none to add it to.
    """
    layers = list(adapted_layers(model))
    for name, layer in layers:
        if layer.lora_B[NAME].bias is not None and layer.bias is None:
            raise TensorParallelError(
                f"{name} has no bias that the bias of its adapter could be added to, so that the adapter "
                "cannot be merged; leave the adapters unmerged, or train without lora_bias"
            )
    merges = [_Merge(layer) for _, layer in layers]
    try:
        yield
    finally:
        for merge in merges:
            merge.undo()


class _Merge:
    """A layer whose adapter is part of its weight."""

    @torch.no_grad()
    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.hook, handle = layer.lora_hook
        self.parts = {key: getattr(layer, key) for key in PARTS}
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        handle.remove()
        for key in PARTS:
            delattr(layer, key)
        if layer.weight.is_meta:
            return
        down, up = self.parts["lora_A"][NAME], self.parts["lora_B"][NAME]
        product = up.weight.float() @ down.weight.float() * self.hook.scaling  # [out, rank] × [rank, in]
        self._add(layer.weight, product.t() if _is_conv1d(layer) else product)
        if up.bias is not None:
            self._add(layer.bias, up.bias.float() * self.hook.scaling)

    def _add(self, parameter: torch.Tensor, change: torch.Tensor) -> None:
        self.kept.append((parameter, parameter.to("cpu", copy=True)))
        parameter.copy_(parameter.float() + change)  # rounded once, as peft does it

    @torch.no_grad()
    def undo(self) -> None:
        """Take the adapter out again."""
        for parameter, value in self.kept:
            parameter.copy_(value)
        for key, module in self.parts.items():
            self.layer.add_module(key, module)
        self.layer.lora_hook = self.hook, self.layer.register_forward_hook(self.hook, prepend=True)


def _branch(name: str, layer: nn.Module, adapter: Adapter) -> dict[str, nn.Module]:
    """Return A and B, on the meta device, for a layer.

    Raises:
        TensorParallelError: it can have none, or has other sizes.
    """
    rank, bias = adapter.down.size(0), adapter.bias is not None
    inputs, outputs = _sizes(name, layer)
    if list(adapter.down.shape) != [rank, inputs] or list(adapter.up.shape) != [outputs, rank]:
        raise TensorParallelError(
            f"{name} makes {outputs} features of {inputs}, but its adapter has matrices of shapes "
            f"{list(adapter.down.shape)} and {list(adapter.up.shape)}; is the adapter of another model?"
        )
    whole: dict[str, Any] = {"device": "meta", "dtype": adapter.down.dtype}
    down: nn.Module = nn.Linear(inputs, rank, bias=False, **whole)
    if not isinstance(layer, ParallelLinear):
        return {"lora_A": down, "lora_B": nn.Linear(rank, outputs, bias=bias, **whole)}
    divided = {**whole, "group": layer.group}
    up: nn.Module
    if isinstance(layer, RowParallelLinear):
        parallel = layer.input_is_parallel
        down = RowParallelLinear(inputs, rank, bias=False, input_is_parallel=parallel, **divided)
        up = nn.Linear(rank, outputs, bias=bias, **whole)
    elif isinstance(layer, SharedColumnParallelLinear):
        up = SharedColumnParallelLinear(rank, outputs, layer.units, bias=bias, **divided)
    elif isinstance(layer, StackedColumnParallelLinear):
        up = StackedColumnParallelLinear(rank, layer.parts, bias=bias, **divided)
    else:
        shard = shard_of(layer.weight)
        padded = None if shard is None or shard.padded_size is None else 1
        gather = getattr(layer, "gather_output", False)
        up = ColumnParallelLinear(
            rank, outputs, bias=bias, gather_output=gather, divisible_by=padded, **divided
        )
    return {"lora_A": down, "lora_B": up}


def _sizes(name: str, layer: Any) -> tuple[int, int]:
    """Return the whole layer's input and output features.

    Raises:
        TensorParallelError: it can have no adapter.
    """
    stacked = isinstance(layer, StackedColumnParallelLinear)
    returns_more = isinstance(layer, MergedColumnParallelLinear) and not stacked
    parallel = isinstance(layer, ParallelLinear)
    if parallel and (layer.sequence_parallel or layer.skip_bias_add or returns_more):
        raise TensorParallelError(
            f"{name} is a {type(layer).__name__} with sequence_parallel, skip_bias_add or several outputs, "
            "to which no adapter can be added; choose other target modules"
        )
    if parallel or isinstance(layer, nn.Linear) or _is_conv1d(layer):
        if not parallel and getattr(layer.weight, "sums_gradients", False):
            raise TensorParallelError(
                f"{name} is whole, but each tensor-parallel rank uses it for a part only, which an adapter "
                "would not know; choose other target modules"
            )
        outputs, inputs = full_shape(layer.weight)
        conv1d = _is_conv1d(layer) or getattr(layer.weight, "stored_transposed", False)
        return (outputs, inputs) if conv1d else (inputs, outputs)
    raise TensorParallelError(
        f"{name} is a {type(layer).__name__}, but adapters are for linear layers; leave it out of the target "
        "modules"
    )


def _is_conv1d(layer: nn.Module) -> bool:
    """Whether a layer that is not divided keeps its weight as `[in, out]`."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(layer, Conv1D)


def _dropout(
    layer: Any, p: float, group: dist.ProcessGroup | None, streams: RandomStreams | None
) -> nn.Module:
    if p == 0:
        return nn.Identity()
    if group is None:
        return nn.Dropout(p)
    if streams is None:
        raise TensorParallelError(
            f"the dropout of adapters is {p}, for which a divided model's random streams are needed; pass "
            "streams=RandomStreams(group, device)"
        )
    own = isinstance(layer, RowParallelLinear) and layer.input_is_parallel
    return ShardedDropout(p, streams) if own else ReplicatedDropout(p, streams)


def _fill(
    branch: Mapping[str, nn.Module],
    adapter: Adapter,
    beside: torch.Tensor,
    group: dist.ProcessGroup | None,
) -> None:
    """Give a branch its values, where the layer whose weight is `beside` has some."""
    if beside.is_meta:
        return
    whole = {
        ("lora_A", "weight"): adapter.down,
        ("lora_B", "weight"): adapter.up,
        ("lora_B", "bias"): adapter.bias,
    }
    for (part, key), full in whole.items():
        module = branch[part]
        if full is None:
            continue
        empty = getattr(module, key)
        local = take_local(empty, full.detach()).to(beside.device, copy=True)
        setattr(module, key, filled_like(empty, local, group))
