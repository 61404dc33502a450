"""The ways to compute the pair over two ranks: the floor, ours and three others, one object each."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from mlp_pair.case import Result, Tensors, down_share, up_share

GROUP = dist.ProcessGroup


class Contender(Protocol):
    """Forward and backward of the pair; gradients are made afresh in each step, never added to."""

    def step(self) -> Result: ...


class Floor:
    """What the hardware allows: six matrix products and two all-reduces, with nothing around them."""

    def __init__(self, tensors: Tensors, group: GROUP) -> None:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self.group = group
        self.input = tensors.input
        self.input_2d = tensors.input.flatten(0, 1)
        self.output_gradient = tensors.output_gradient.flatten(0, 1)
        self.up, self.down = up_share(tensors.up, rank, size), down_share(tensors.down, rank, size)

    @torch.no_grad()
    def step(self) -> Result:
        x, dy = self.input_2d, self.output_gradient
        hidden = torch.mm(x, self.up.t())  # [tokens, hidden] @ [hidden, share]
        output = torch.mm(hidden, self.down.t())  # [tokens, share] @ [share, hidden]
        dist.all_reduce(output, group=self.group)
        of_down = torch.mm(dy.t(), hidden)  # [hidden, tokens] @ [tokens, share]
        of_hidden = torch.mm(dy, self.down)  # [tokens, hidden] @ [hidden, share]
        of_up = torch.mm(of_hidden.t(), x)  # [share, tokens] @ [tokens, hidden]
        of_input = torch.mm(of_hidden, self.up)  # [tokens, share] @ [share, hidden]
        dist.all_reduce(of_input, group=self.group)
        return Result(output.view_as(self.input), of_input.view_as(self.input), of_up, of_down)


class Layers:
    """A pair of layers run by autograd: ``first`` and ``second`` in turn, as a model would."""

    def __init__(
        self,
        tensors: Tensors,
        first: Callable[[torch.Tensor], torch.Tensor],
        second: Callable[[torch.Tensor], torch.Tensor],
        up: torch.nn.Parameter,
        down: torch.nn.Parameter,
    ) -> None:
        self.first, self.second, self.up, self.down = first, second, up, down
        self.input = tensors.input.clone().requires_grad_()
        self.output_gradient = tensors.output_gradient

    def step(self) -> Result:
        self.input.grad = self.up.grad = self.down.grad = None
        output = self.second(self.first(self.input))
        output.backward(self.output_gradient)
        return Result(output, self.input.grad, self.up.grad, self.down.grad)


class CopyToRanks(torch.autograd.Function):
    """The paper's f, written as one would by hand: the input as it is, its gradient summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: GROUP) -> torch.Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class SumOverRanks(torch.autograd.Function):
    """The paper's g: the sum over the ranks, the gradient as it is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: GROUP) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def by_hand(tensors: Tensors, group: GROUP) -> Layers:
    """``torch.nn.functional.linear`` between f and g."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    up = torch.nn.Parameter(up_share(tensors.up, rank, size))
    down = torch.nn.Parameter(down_share(tensors.down, rank, size))
    return Layers(
        tensors,
        lambda x: torch.nn.functional.linear(CopyToRanks.apply(x, group), up),
        lambda x: SumOverRanks.apply(torch.nn.functional.linear(x, down), group),
        up,
        down,
    )


def ours(tensors: Tensors, group: GROUP) -> Layers:
    from npu_plugins.tensor_parallel import ColumnParallelLinear, RowParallelLinear

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    intermediate, hidden = tensors.up.shape
    device = tensors.input.device
    common = {"group": group, "bias": False, "seed": 0, "device": device}
    up = ColumnParallelLinear(hidden, intermediate, gather_output=False, **common)
    down = RowParallelLinear(intermediate, hidden, input_is_parallel=True, **common)
    with torch.no_grad():
        up.weight.copy_(up_share(tensors.up, rank, size))
        down.weight.copy_(down_share(tensors.down, rank, size))
    return Layers(tensors, up, down, up.weight, down.weight)


def megatron_core(tensors: Tensors, group: GROUP) -> Layers:
    """megatron-core's two layers; ImportError where it is not installed (see ``tensor_parallel.py``)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells about a dozen optional CUDA packages
        from megatron.core.model_parallel_config import ModelParallelConfig
        from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    intermediate, hidden = tensors.up.shape
    config = ModelParallelConfig(
        tensor_model_parallel_size=size, use_cpu_initialization=True, perform_initialization=False
    )
    common = {
        "config": config,
        "init_method": torch.nn.init.zeros_,
        "bias": False,
        "skip_bias_add": False,
        "tp_group": group,
    }
    up = ColumnParallelLinear(hidden, intermediate, gather_output=False, **common)
    down = RowParallelLinear(intermediate, hidden, input_is_parallel=True, **common)
    up, down = up.to(tensors.input.device), down.to(tensors.input.device)
    with torch.no_grad():
        up.weight.copy_(up_share(tensors.up, rank, size))
        down.weight.copy_(down_share(tensors.down, rank, size))
    # Each layer returns its output and the bias that it did not add.
    return Layers(tensors, lambda x: up(x)[0], lambda x: down(x)[0], up.weight, down.weight)


class DTensor:
    """``torch.nn.Linear`` twice, parallelised by torch's own plan styles."""

    def __init__(self, tensors: Tensors, group: GROUP) -> None:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        intermediate, hidden = tensors.up.shape
        device = tensors.input.device
        module = torch.nn.Sequential(
            torch.nn.Linear(hidden, intermediate, bias=False, device=device),
            torch.nn.Linear(intermediate, hidden, bias=False, device=device),
        )
        with torch.no_grad():
            module[0].weight.copy_(tensors.up)
            module[1].weight.copy_(tensors.down)
        mesh = DeviceMesh.from_group(group, device.type)
        self.module = parallelize_module(module, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        self.input = tensors.input.clone().requires_grad_()
        self.output_gradient = tensors.output_gradient

    def step(self) -> Result:
        up, down = self.module[0].weight, self.module[1].weight
        self.input.grad = up.grad = down.grad = None
        output = self.module(self.input)
        output.backward(self.output_gradient)
        # Both are handed back before their all-reduce has ended.
        output, of_input = (_arrived(tensor) for tensor in (output, self.input.grad))
        return Result(output, of_input, up.grad.to_local(), down.grad.to_local())


def _arrived(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself once its collective has ended."""
    return tensor.wait() if hasattr(tensor, "wait") else tensor


CONTENDERS: dict[str, Callable[[Tensors, GROUP], Contender]] = {
    "floor": Floor,
    "ours": ours,
    "by hand": by_hand,
    "megatron-core": megatron_core,
    "DTensor": DTensor,
}
"""Floor first: the others are told as a ratio to it. Those below ours are its peers."""

OPTIONAL = {"megatron-core"}
"""No dependency of this project: left out where it is not installed."""
