"""Query, key and value projections of attention, divided by heads."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.tensor_parallel.collectives import copy_to_region, gather_sequence
from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.groups import choose_group, divide
from npu_plugins.tensor_parallel.linear import ColumnParallelLinear
from npu_plugins.tensor_parallel.merged import MergedColumnParallelLinear, SharedColumnParallelLinear
from npu_plugins.tensor_parallel.module import TensorParallelModule


class QKVParallelLinear(TensorParallelModule):
    """Query, key and value of multi-head or grouped-query attention (arXiv 2305.13245) from one input.

    Rank r of t gets the query heads r·h/t to (r+1)·h/t and the key-value heads that these use. As long as
    there is a key-value head for every rank, one merged weight `[q | k | v]` and one matrix product serve all
    three. With fewer, several ranks use the same head: keys and values are `SharedColumnParallelLinear`.

    Args:
        hidden_size: length of the input's last dim.
        head_dim: length of a head.
        num_heads: query heads, over all ranks.
        num_kv_heads: key-value heads; None: as many as query heads.
        tp_size: ranks to divide over. Without `group` the default process group must have that many.
        group: the tensor-parallel process group; None with tp_size None or 1: one rank.
        sequence_parallel: whether the input is a piece `[seq/tp, batch, hidden]` of the sequence.
        options: bias, seed, device, dtype, init_method, weight_gradients, as for ColumnParallelLinear.

    Attributes:
        local_heads: query heads of this rank.
        local_kv_heads: key-value heads that this rank uses.

    Raises:
        TensorParallelError: heads cannot be divided like that.
    """

    def __init__(
        self,
        hidden_size: int,
        head_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        tp_size: int | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        sequence_parallel: bool = False,
        **options: Any,
    ) -> None:
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        owner = f"QKVParallelLinear({hidden_size}, {head_dim}, heads={num_heads}, kv_heads={kv_heads})"
        group = choose_group(owner, tp_size, group)
        super().__init__(group)
        self.head_dim, self.sequence_parallel = head_dim, sequence_parallel
        ranks = self.tp_size
        self.local_heads = divide(owner, "num_heads", num_heads, ranks)
        if kv_heads < 1 or num_heads % kv_heads:
            raise TensorParallelError(
                f"{owner}: {kv_heads} key-value heads do not divide {num_heads} query heads; choose a number "
                "that does"
            )
        if kv_heads % ranks and ranks % kv_heads:
            raise TensorParallelError(
                f"{owner}: {kv_heads} key-value heads and {ranks} tensor-parallel ranks: one must divide the "
                "other; choose another tp"
            )
        self.local_kv_heads = max(1, kv_heads // ranks)
        queries, values = num_heads * head_dim, kv_heads * head_dim
        self.merged: MergedColumnParallelLinear | None = None
        if kv_heads % ranks == 0:
            self.merged = MergedColumnParallelLinear(
                hidden_size,
                [queries, values, values],
                group=group,
                sequence_parallel=sequence_parallel,
                **options,
            )
            return
        options |= {"group": group, "reduce_input_gradient": False}  # done once, in front of the three
        self.query = ColumnParallelLinear(hidden_size, queries, **options)
        self.key = SharedColumnParallelLinear(hidden_size, values, kv_heads, **options)
        self.value = SharedColumnParallelLinear(hidden_size, values, kv_heads, **options)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`[seq, batch, hidden]` → queries `[seq, batch, local_heads, head_dim]`; keys and values alike."""
        if self.merged is not None:
            q, k, v = self.merged(x)
        else:
            enter = gather_sequence if self.sequence_parallel else copy_to_region
            x = enter(x, self.group)
            q, k, v = self.query(x), self.key(x), self.value(x)
        return tuple(part.unflatten(-1, (-1, self.head_dim)) for part in (q, k, v))
