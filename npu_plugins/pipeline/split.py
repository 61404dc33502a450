"""How the layers of a stage leave their weight gradients for later: the one place where that is decided.

A schedule with split backwards needs layers whose weight gradient is a work of its own. Those are the linear
ones, which hold nearly all of a transformer's weight-gradient time:

- layers of `npu_plugins.tensor_parallel` are given the store;
- ``torch.nn.Linear`` and transformers' ``Conv1D`` become `DeferringLinear` and `DeferringConv1D`: the same
  objects, with the same parameters, hooks, names and results, of a class whose product is the tensor-parallel
  layers' with no group. Subclasses are left alone, as their forward may be another one.

All else (norms, embeddings, products in functional style) computes its weight gradient together with the
input gradient; that is as right, and only moves work from W to I.

A layer is not replaced by a new module, since a model may hold it in places that cannot be found, such as
hooks and plain lists; and linear layers are not intercepted at `torch.nn.functional.linear`, which would
slow every call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from npu_plugins.tensor_parallel.deferred import WeightGradients
from npu_plugins.tensor_parallel.matmul import ColumnMatmul, Setting


class DeferringLinear(nn.Linear):
    """``torch.nn.Linear`` that leaves its weight gradient to `weight_gradients` while that collects."""

    weight_gradients: WeightGradients

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y = x Wᵀ + b, ``[…, in]`` → ``[…, out]``."""
        return _product(x, self.weight, self.bias, self.weight_gradients)


class DeferringConv1D(nn.Module):
    """transformers' ``Conv1D``, a linear layer whose weight is ``[in, out]``, that does the same."""

    weight_gradients: WeightGradients

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y = x W + b, ``[…, in]`` → ``[…, out]``."""
        return _product(x, self.weight.t(), self.bias, self.weight_gradients)


def defer_weight_gradients(modules: Iterable[nn.Module], store: WeightGradients) -> None:
    """Let all layers within `modules` that can do so leave their weight gradients to `store`."""
    conv1d = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
    for root in modules:
        for module in root.modules():
            if type(module) is nn.Linear:
                module.__class__ = DeferringLinear
            elif conv1d is not None and type(module) is conv1d:
                module.__class__ = type("DeferringConv1D", (DeferringConv1D, conv1d), {})
            if isinstance(module, (DeferringLinear, DeferringConv1D)) or hasattr(module, "weight_gradients"):
                module.weight_gradients = store


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, store: WeightGradients
) -> torch.Tensor:
    tensors: list[Any] = [x, weight, bias]
    if torch.is_autocast_enabled(x.device.type):
        # As autocast does for torch's own product; inside an autograd function it would cast behind its back.
        dtype = torch.get_autocast_dtype(x.device.type)
        tensors = [None if tensor is None else tensor.to(dtype) for tensor in tensors]
    return ColumnMatmul.apply(*tensors, Setting(None, False, store))
