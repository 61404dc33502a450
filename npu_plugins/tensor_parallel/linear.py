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
from npu_plugins.tensor_parallel.groups import check_group_serves, choose_group, divide
from npu_plugins.tensor_parallel.initialize import (
    InitMethod,
    check_same_stream,
    cpu_seed,
    draw,
    kaiming_uniform,
)
from npu_plugins.tensor_parallel.matmul import ColumnMatmul, RowMatmul, Setting
from npu_plugins.tensor_parallel.module import TensorParallelModule
from npu_plugins.tensor_parallel.shard import Shard, padded_size


class ParallelLinear(TensorParallelModule):
    """What all layers here have in common: sizes, group, options and how parameters are drawn.

    Attributes:
        weight: `[out, in]`, the local part; `shard_of(weight)` says which.
        bias: `[out]`, or None.
    """

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
        super().__init__(group)
        self.in_features, self.out_features = in_features, out_features
        self.sequence_parallel = sequence_parallel
        self.skip_bias_add = skip_bias_add
        self.weight_gradients = weight_gradients
        self._served: torch.device | None = None  # the group is known to serve it
        self._kind = ""  # the type of that device

    def _make(
        self,
        weight_shard: Shard | None,
        bias_shard: Shard | None,
        bias: bool,
        init_method: InitMethod | None,
        seed: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Make the parameters, mark them, and draw them unless they are on the meta device."""
        self.hold("weight", [self.out_features, self.in_features], weight_shard, device, dtype)
        if bias:
            self.hold("bias", [self.out_features], bias_shard, device, dtype)
        else:
            self.register_parameter("bias", None)
        if self.weight.device.type == "meta":
            return
        if seed is None:
            check_same_stream(str(self), self.group)
        with cpu_seed(seed):
            draw(self.weight, weight_shard, init_method or kaiming_uniform, by_rows=init_method is None)
            if self.bias is not None and init_method is None:
                bound = 1 / math.sqrt(self.in_features)
                draw(self.bias, bias_shard, lambda b: nn.init.uniform_(b, -bound, bound))
            elif self.bias is not None:
                nn.init.zeros_(self.bias)

    def _admit(
        self, x: torch.Tensor, features: int, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Check the input; return all three as autocast makes the arguments of torch.nn.functional.linear.

        Raises:
            TensorParallelError: the input's last dim is not `features`, or no device of the group's.
        """
        if x.size(-1) != features:
            raise TensorParallelError(
                f"{self}: the input has shape {tuple(x.shape)}, but its last dim must be {features} long"
            )
        if x.device != self._served:
            check_group_serves(str(self), self.group, x.device)
            # Kept, since torch_npu makes the name of the type anew at each look.
            self._served, self._kind = x.device, x.device.type
        if torch.is_autocast_enabled(self._kind):
            dtype = torch.get_autocast_dtype(self._kind)
            x, weight = x.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        return x, weight, bias

    def extra_repr(self) -> str:
        """Sizes, as torch.nn.Linear shows them, and how they are divided."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={getattr(self, 'bias', None) is not None}, tp={self.tp_size}"
        )

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


class ColumnParallelLinear(ParallelLinear):
    """y = x Wᵀ + b with the output features divided over the group (Megatron-LM, arXiv 1909.08053 §3).

    By default the output stays divided, as Megatron-core has it and as a RowParallelLinear after it expects
    it: between the two nothing is communicated. `gather_output=True` makes the output whole on every rank,
    for a layer that stands alone.

    Args:
        in_features: length of the input's last dim.
        out_features: length of the output's last dim, over all ranks.
        tp_size: ranks to divide over. Without `group` the default process group must have that many.
        group: the tensor-parallel process group (`mesh.group("tp")`); None with tp_size None or 1: one rank.
        bias: whether there is a bias, divided like the output.
        gather_output: whether the output is gathered on every rank.
        sequence_parallel: whether the input is a piece `[seq/tp, batch, in]` of the sequence (dim 0), which
            the layer gathers (Korthikanti et al., arXiv 2205.05198 §4.2).
        skip_bias_add: return (output, bias) and let the caller add the bias, fused with what follows.
        divisible_by: out_features that the ranks do not divide are refused, unless this is given: the
            layer then holds zero rows up to a multiple of `divisible_by` × ranks (an output layer over a
            vocabulary). A gathered output has no padding; a divided one has it on the last ranks.
        reduce_input_gradient: False where a `copy_to_region` in front of several layers does it once.
        init_method: fills the full `[out, in]` matrix, drawn alike for every tp; the bias is then zero. None:
            what torch.nn.Linear draws, the bias too.
        seed: of the CPU generator while drawing. None: the generator as it stands, which must be the same on
            all ranks of the group; this is checked, with a collective.
        device: of the parameters; on "meta" nothing is drawn.
        dtype: of the parameters.
        weight_gradients: where the backward pass leaves the weight gradient when it is to run later.

    Raises:
        TensorParallelError: sizes do not divide, the group does not fit, or options exclude each other.
    """

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
        divisible_by: int | None = None,
        reduce_input_gradient: bool = True,
        init_method: InitMethod | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        weight_gradients: WeightGradients | None = None,
    ) -> None:
        owner = f"{type(self).__name__}({in_features}, {out_features})"
        group = choose_group(owner, tp_size, group)
        super().__init__(in_features, out_features, group, sequence_parallel, skip_bias_add, weight_gradients)
        if skip_bias_add and gather_output:
            raise TensorParallelError(
                f"{owner}: gather_output makes the output whole, but skip_bias_add returns a divided bias; "
                "choose one of them"
            )
        if sequence_parallel and not reduce_input_gradient:
            raise TensorParallelError(
                f"{owner}: with sequence_parallel the layer gathers its own input, and so it reduces its "
                "gradient; use gather_sequence in front of the layers and leave sequence_parallel out"
            )
        self.gather_output, self.reduce_input_gradient = gather_output, reduce_input_gradient
        shard = self._shard(owner, divisible_by)
        self._make(shard, shard, bias, init_method, seed, device, dtype)

    def _shard(self, owner: str, divisible_by: int | None) -> Shard:
        padded = None
        if divisible_by is None:
            divide(owner, "out_features", self.out_features, self.tp_size)
        else:
            padded = padded_size(self.out_features, self.tp_size, divisible_by)
        return Shard(0, self.tp_rank, self.tp_size, self.out_features, padded_size=padded)

    def forward(self, x: torch.Tensor) -> Any:
        """The layer's output.

        Args:
            x: `[seq, batch, in]`, or any other leading dims; with sequence_parallel `[seq/tp, batch, in]`.

        Returns:
            `[seq, batch, out/tp]`, with gather_output `[seq, batch, out]`; with skip_bias_add a pair of that
            and the bias.

        Raises:
            TensorParallelError: the input's last dim is wrong, or its device is none the group serves.
        """
        bias = None if self.skip_bias_add else self.bias
        x, weight, bias = self._admit(x, self.in_features, self.weight, bias)
        group = self.group if self.reduce_input_gradient else None
        setting = Setting(group, self.sequence_parallel, self.weight_gradients)
        y = ColumnMatmul.apply(x, weight, bias, setting)
        if self.gather_output:
            y = gather_from_region(y, self.group, -1)[..., : self.out_features]
        return (y, self.bias) if self.skip_bias_add else y


class RowParallelLinear(ParallelLinear):
    """y = Σ x Wᵀ + b with the input features divided over the group (Megatron-LM, arXiv 1909.08053 §3).

    Args:
        in_features: length of the input's last dim, over all ranks.
        out_features: length of the output's last dim.
        tp_size: ranks to divide over. Without `group` the default process group must have that many.
        group: the tensor-parallel process group (`mesh.group("tp")`); None with tp_size None or 1: one rank.
        bias: whether there is a bias; it is replicated and added once, after the sum.
        input_is_parallel: whether the input is the rank's part `[…, in/tp]`, as a ColumnParallelLinear leaves
            it; False: the whole input, of which the layer takes its part.
        sequence_parallel: whether the output is scattered along the sequence (dim 0) instead of whole.
        skip_bias_add: return (output, bias) and let the caller add the bias, fused with what follows.
        init_method, seed, device, dtype, weight_gradients: as for ColumnParallelLinear.

    Raises:
        TensorParallelError: sizes do not divide, or the group does not fit.
    """

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
        owner = f"{type(self).__name__}({in_features}, {out_features})"
        group = choose_group(owner, tp_size, group)
        super().__init__(in_features, out_features, group, sequence_parallel, skip_bias_add, weight_gradients)
        self.input_is_parallel = input_is_parallel
        divide(owner, "in_features", in_features, self.tp_size)
        shard = Shard(1, self.tp_rank, self.tp_size, in_features)
        self._make(shard, None, bias, init_method, seed, device, dtype)

    def forward(self, x: torch.Tensor) -> Any:
        """The layer's output.

        Args:
            x: `[seq, batch, in/tp]`, or `[seq, batch, in]` with input_is_parallel=False.

        Returns:
            `[seq, batch, out]`, with sequence_parallel `[seq/tp, batch, out]`; with skip_bias_add a pair of
            that and the bias.

        Raises:
            TensorParallelError: a dim of the input is wrong, or its device is none the group serves.
        """
        features = self.in_features // self.tp_size if self.input_is_parallel else self.in_features
        bias = None if self.skip_bias_add else self.bias
        x, weight, bias = self._admit(x, features, self.weight, bias)
        if not self.input_is_parallel:
            x = scatter_to_region(x, self.group, -1)
        setting = Setting(self.group, self.sequence_parallel, self.weight_gradients)
        y = RowMatmul.apply(x, weight, bias, setting)
        if not self.skip_bias_add:
            return y
        if self.bias is None or not self.sequence_parallel:
            return y, self.bias
        # Added to a piece of the sequence, the bias gets a part of its gradient on every rank.
        return y, copy_to_region(self.bias, self.group)
