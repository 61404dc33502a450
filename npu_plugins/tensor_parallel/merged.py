"""Column-parallel layers merged in one, and those with fewer units than ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.tensor_parallel.collectives import all_reduced
from npu_plugins.tensor_parallel.deferred import WeightGradients
from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.groups import choose_group, divide
from npu_plugins.tensor_parallel.initialize import InitMethod
from npu_plugins.tensor_parallel.linear import ColumnParallelLinear, ParallelLinear
from npu_plugins.tensor_parallel.matmul import ColumnMatmul, Setting
from npu_plugins.tensor_parallel.shard import Shard


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Several column-parallel layers of one input, with their weights stacked in one.

    One matrix product, one gather of the input and one reduction of its gradient serve all of them. Each part
    is divided on its own: the local weight is the rank's rows of the first part, then those of the second, …

    Args:
        in_features: length of the input's last dim.
        parts: output features of each part, over all ranks.
        tp_size: as for ColumnParallelLinear, like all that follows.
    """

    def __init__(
        self, in_features: int, parts: Sequence[int], tp_size: int | None = None, **options: Any
    ) -> None:
        for name in ("gather_output", "skip_bias_add", "divisible_by"):
            if options.get(name):
                raise TensorParallelError(
                    f"MergedColumnParallelLinear({in_features}, {list(parts)}): {name} is not possible for "
                    "merged parts; use one ColumnParallelLinear for each"
                )
        self.parts = tuple(parts)
        super().__init__(in_features, sum(parts), tp_size, **options)

    def _shard(self, owner: str, divisible_by: int | None) -> Shard:
        for index, part in enumerate(self.parts):
            divide(owner, f"part {index}, of length", part, self.tp_size)
        return Shard(0, self.tp_rank, self.tp_size, self.out_features, self.parts)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`[seq, batch, in]` → one `[seq, batch, part/tp]` for each part (views of one tensor)."""
        return super().forward(x).split([part // self.tp_size for part in self.parts], -1)


class SharedColumnParallelLinear(ParallelLinear):
    """A column-parallel layer with fewer units (key-value heads) than ranks: several ranks use the same unit.

    Every rank holds the whole weight, uses the rows of its unit, and adds up the gradients of all ranks. So
    the parameter is simply a replicated one, in the optimizer, in the gradient norm and in a checkpoint; a
    rank that held its unit's rows only would be neither sharded nor replicated, and counted wrongly by every
    one of them. Such weights are small: `units` is less than the number of ranks.

    Args:
        in_features: length of the input's last dim.
        out_features: output features of all units together.
        units: how many there are; they divide the number of ranks.
        tp_size: as for ColumnParallelLinear, like all that follows.

    Raises:
        TensorParallelError: `units` does not divide the ranks or the features.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        units: int,
        tp_size: int | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        bias: bool = True,
        sequence_parallel: bool = False,
        reduce_input_gradient: bool = True,
        init_method: InitMethod | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        weight_gradients: WeightGradients | None = None,
    ) -> None:
        owner = f"{type(self).__name__}({in_features}, {out_features}, units={units})"
        group = choose_group(owner, tp_size, group)
        super().__init__(in_features, out_features, group, sequence_parallel, False, weight_gradients)
        if units < 1 or self.tp_size % units or out_features % units:
            raise TensorParallelError(
                f"{owner}: {units} units must divide both {self.tp_size} ranks and {out_features} features, "
                "so that each rank uses one; choose another tp"
            )
        self.units, self.reduce_input_gradient = units, reduce_input_gradient
        length = out_features // units
        first = self.tp_rank // (self.tp_size // units) * length
        self.rows = (first, first + length)
        self._make(None, None, bias, init_method, seed, device, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[seq, batch, in]` → `[seq, batch, out/units]`, the output of the rank's unit."""
        weight, bias = (
            None if p is None else _Rows.apply(p, self.rows, self.group) for p in (self.weight, self.bias)
        )
        x, weight, bias = self._admit(x, self.in_features, weight, bias)
        group = self.group if self.reduce_input_gradient else None
        setting = Setting(group, self.sequence_parallel, self.weight_gradients)
        return ColumnMatmul.apply(x, weight, bias, setting)


class _Rows(torch.autograd.Function):
    """Some rows of a replicated parameter; the backward pass adds up what the ranks did to all rows."""

    @staticmethod
    def forward(
        ctx: Any, parameter: torch.Tensor, rows: tuple[int, int], group: dist.ProcessGroup | None
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.rows, ctx.group, ctx.length = rows, group, parameter.size(0)
        return parameter[rows[0] : rows[1]]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        if grad is None:  # a deferred weight gradient comes later
            return None, None, None
        full = grad.new_zeros(ctx.length, *grad.shape[1:])
        full[ctx.rows[0] : ctx.rows[1]] = grad
        return all_reduced(full, ctx.group), None, None
