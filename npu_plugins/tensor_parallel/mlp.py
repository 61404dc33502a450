"""The feed-forward block: one column-parallel and one row-parallel layer with nothing sent between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from npu_plugins.tensor_parallel.merged import MergedColumnParallelLinear

Activation = Callable[[torch.Tensor], torch.Tensor]


class ParallelMLP(nn.Module):
    """down(act(up(x))) (Megatron-LM, arXiv 1909.08053 §3).

    Args:
        hidden_size: length of the input's and the output's last dim.
        intermediate_size: length in between, over all ranks.
        tp_size: ranks to divide over. Without a `group` among the options the default process group must have
            that many.
        activation: elementwise, so that every rank can apply it to its part.
        options: group, bias, sequence_parallel, seed, device, dtype, init_method, weight_gradients, as for
            ColumnParallelLinear. The second layer is drawn from `seed` + 1.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        tp_size: int | None = None,
        *,
        activation: Activation = F.gelu,
        **options: Any,
    ) -> None:
        super().__init__()
        _check_options(type(self).__name__, options)
        self.activation = activation
        self.up = self._enter(hidden_size, intermediate_size, tp_size, options)
        if options.get("seed") is not None:
            options = options | {"seed": options["seed"] + 1}
        self.down = RowParallelLinear(intermediate_size, hidden_size, tp_size, **options)

    def _enter(
        self, hidden_size: int, intermediate_size: int, tp_size: int | None, options: dict[str, Any]
    ) -> ColumnParallelLinear:
        return ColumnParallelLinear(hidden_size, intermediate_size, tp_size, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[seq, batch, hidden]` → the same shape; with sequence_parallel both are pieces `[seq/tp, …]`."""
        return self.down(self.activation(self.up(x)))


class GatedParallelMLP(ParallelMLP):
    """down(act(gate(x)) · up(x)) (GLU variants, arXiv 2002.05202), gate and up merged in one weight.

    The merged weight is `[gate | up]`; each half is divided on its own, so that a rank's gate and up belong
    to the same features. Arguments are those of ParallelMLP.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        tp_size: int | None = None,
        *,
        activation: Activation = F.silu,
        **options: Any,
    ) -> None:
        super().__init__(hidden_size, intermediate_size, tp_size, activation=activation, **options)

    def _enter(
        self, hidden_size: int, intermediate_size: int, tp_size: int | None, options: dict[str, Any]
    ) -> ColumnParallelLinear:
        return MergedColumnParallelLinear(hidden_size, [intermediate_size] * 2, tp_size, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[seq, batch, hidden]` → the same shape; with sequence_parallel both are pieces `[seq/tp, …]`."""
        gate, up = self.up(x)
        return self.down(self.activation(gate) * up)


_SHARED = {
    "group",
    "bias",
    "sequence_parallel",
    "init_method",
    "seed",
    "device",
    "dtype",
    "weight_gradients",
}


def _check_options(owner: str, options: dict[str, Any]) -> None:
    unknown = sorted(set(options) - _SHARED)
    if unknown:
        raise TensorParallelError(
            f"{owner}: {', '.join(unknown)} cannot be an option of both layers; options are "
            f"{', '.join(sorted(_SHARED))}"
        )
