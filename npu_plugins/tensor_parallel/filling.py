"""Filling the parameters of a model that was divided on the meta device."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.tensor_parallel.collectives import sum_gradients
from npu_plugins.tensor_parallel.shard import mark, shard_of


def take_local(parameter: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    """Return what `parameter` holds of the full tensor as transformers has it; that itself for a whole one.

    Args:
        parameter: of a divided model, on any device.
        full: the undivided model's, `[in, out]` where that model's layer is a Conv1D.

    Raises:
        TensorParallelError: the full tensor has another shape than the undivided parameter.
    """
    shard = shard_of(parameter)
    full = full.t() if getattr(parameter, "stored_transposed", False) else full
    return full if shard is None else shard.take(full)


def filled_like(
    parameter: nn.Parameter, local: torch.Tensor, group: dist.ProcessGroup | None
) -> nn.Parameter:
    """Return a parameter with the values `local` that is divided, stored and reduced as `parameter` is.

    Args:
        parameter: the one on the meta device that it takes the place of.
        local: of its shape.
        group: the tensor-parallel group.
    """
    made = nn.Parameter(local, requires_grad=parameter.requires_grad)
    mark(made, shard_of(parameter))
    if getattr(parameter, "stored_transposed", False):
        made.stored_transposed = True
    if getattr(parameter, "sums_gradients", False):
        sum_gradients([made], group)
    return made


def full_shape(tensor: torch.Tensor) -> list[int]:
    """Return the shape of the full tensor, as transformers has it, of which `tensor` is a part."""
    shape, shard = list(tensor.shape), shard_of(tensor)
    if shard is not None:
        shape[shard.dim] = shard.full_size
    return shape[::-1] if getattr(tensor, "stored_transposed", False) else shape
