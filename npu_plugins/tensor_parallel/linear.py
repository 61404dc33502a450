"""Linear layers whose weight is divided over the ranks of a tensor-parallel group."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.tensor_parallel.collectives import copy_to_region, gather_from_region, scatter_to_region
from npu_plugins.tensor_parallel.deferred import WeightGradients
from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.groups import (
    check_group_serves,
    choose_group,
    divide,
    rank_of,
    size_of,
)
from npu_plugins.tensor_parallel.initialize import InitMethod, cpu_seed, draw, kaiming_uniform
from npu_plugins.tensor_parallel.matmul import ColumnMatmul, RowMatmul
from npu_plugins.tensor_parallel.shard import Shard, mark

Output = torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]


class _ParallelLinear(nn.Module):
    """What column- and row-parallel layers have in common."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        group: dist.ProcessGroup | None,
        sequence_parallel: bool,
        skip_bias_add: bool,
        weight_gradients: WeightGradients | None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.group = group
        self.tp_size, self.tp_rank = size_of(group), rank_of(group)
        self.sequence_parallel = sequence_parallel
        self.skip_bias_add = skip_bias_add
        self.weight_gradients = weight_gradients

    def _make(
        self,
        weight_shard: Shard,
        bias_shard: Shard | None,
        bias: bool,
        init_method: InitMethod | None,
        seed: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        shape = [self.out_features, self.in_features]
        shape[weight_shard.dim] = weight_shard.local_size
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        mark(self.weight, weight_shard)
        if bias:
            length = self.out_features if bias_shard is None else bias_shard.local_size
            self.bias = nn.Parameter(torch.empty(length, device=device, dtype=dtype))
            if bias_shard is not None:
                mark(self.bias, bias_shard)
        else:
            self.register_parameter("bias", None)
        if self.weight.device.type != "meta":
            self._draw(weight_shard, bias_shard, init_method, seed)

    def _draw(
        self, weight_shard: Shard, bias_shard: Shard | None, init_method: InitMethod | None, seed: int | None
    ) -> None:
        with cpu_seed(seed):
            draw(
                self.weight,
                weight_shard,
                (self.out_features, self.in_features),
                init_method or kaiming_uniform,
            )
            if self.bias is not None and init_method is not None:
                nn.init.zeros_(self.bias)
            elif self.bias is not None:
                bound = 1 / math.sqrt(self.in_features)
                draw(
                    self.bias, bias_shard, (self.out_features,), lambda b: nn.init.uniform_(b, -bound, bound)
                )

    def _check_input(self, x: torch.Tensor, features: int) -> None:
        if x.size(-1) != features:
            raise TensorParallelError(
                f"{self}: the input has shape {tuple(x.shape)}, but its last dim must be {features}"
            )
        check_group_serves(str(self), self.group, x.device)

    def extra_repr(self) -> str:
        """Sizes, as torch.nn.Linear shows them, and how they are divided."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"tp={self.tp_size}"
        )

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


class ColumnParallelLinear(_ParallelLinear):
    """y = x Wᵀ + b with the output features divided over the group (Megatron-LM, arXiv 1909.08053 §3)."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        tp_size: int | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        bias: bool = True,
        gather_output: bool = False,
        sequence_parallel: bool = False,
        skip_bias_add: bool = False,
        init_method: InitMethod | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        weight_gradients: WeightGradients | None = None,
    ) -> None:
        owner = f"ColumnParallelLinear({in_features}, {out_features})"
        group = choose_group(owner, tp_size, group)
        super().__init__(in_features, out_features, group, sequence_parallel, skip_bias_add, weight_gradients)
        self.gather_output = gather_output
        divide(owner, "out_features", out_features, self.tp_size)
        shard = Shard(0, self.tp_rank, self.tp_size, out_features)
        self._make(shard, shard, bias, init_method, seed, device, dtype)

    def forward(self, x: torch.Tensor) -> Output:
        """`[seq, batch, in]` (a piece `[seq/tp, …]` with sequence_parallel) → `[seq, batch, out/tp]`."""
        self._check_input(x, self.in_features)
        bias = None if self.skip_bias_add else self.bias
        y = ColumnMatmul.apply(
            x, self.weight, bias, self.group, self.sequence_parallel, self.weight_gradients
        )
        if self.gather_output:
            y = gather_from_region(y, self.group, -1)
        return (y, self.bias) if self.skip_bias_add else y


class RowParallelLinear(_ParallelLinear):
    """y = x Wᵀ + b with the input features divided over the group (Megatron-LM, arXiv 1909.08053 §3)."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        tp_size: int | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        bias: bool = True,
        input_is_parallel: bool = True,
        sequence_parallel: bool = False,
        skip_bias_add: bool = False,
        init_method: InitMethod | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        weight_gradients: WeightGradients | None = None,
    ) -> None:
        owner = f"RowParallelLinear({in_features}, {out_features})"
        group = choose_group(owner, tp_size, group)
        super().__init__(in_features, out_features, group, sequence_parallel, skip_bias_add, weight_gradients)
        self.input_is_parallel = input_is_parallel
        divide(owner, "in_features", in_features, self.tp_size)
        self._make(
            Shard(1, self.tp_rank, self.tp_size, in_features), None, bias, init_method, seed, device, dtype
        )

    def forward(self, x: torch.Tensor) -> Output:
        """`[seq, batch, in/tp]` → `[seq, batch, out]` (a piece `[seq/tp, …]` with sequence_parallel)."""
        if not self.input_is_parallel:
            x = scatter_to_region(x, self.group, -1)
        self._check_input(x, self.weight.size(1))
        bias = None if self.skip_bias_add else self.bias
        y = RowMatmul.apply(x, self.weight, bias, self.group, self.sequence_parallel, self.weight_gradients)
        if not self.skip_bias_add:
            return y
        return y, self._bias_for_outside()

    def _bias_for_outside(self) -> Any:
        # Added to a piece of the sequence outside, the bias gets a part of its gradient on every rank.
        if self.bias is None or not self.sequence_parallel:
            return self.bias
        return copy_to_region(self.bias, self.group)
