"""An embedding whose vocabulary is divided over the ranks of a tensor-parallel group."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from npu_plugins.tensor_parallel.collectives import reduce_from_region, reduce_scatter_sequence
from npu_plugins.tensor_parallel.groups import check_group_serves, choose_group, rank_of, size_of
from npu_plugins.tensor_parallel.initialize import InitMethod, cpu_seed, draw
from npu_plugins.tensor_parallel.shard import Shard, mark


def padded_size(size: int, ranks: int, divisible_by: int = 1) -> int:
    """`size` rounded up to a multiple of `divisible_by` × `ranks`."""
    unit = divisible_by * ranks
    return -(-size // unit) * unit


class VocabParallelEmbedding(nn.Module):
    """torch.nn.Embedding with its rows divided over the group (Megatron-LM, arXiv 1909.08053 §3)."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        tp_size: int | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        padding_idx: int | None = None,
        divisible_by: int = 1,
        sequence_parallel: bool = False,
        init_method: InitMethod | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        group = choose_group(f"VocabParallelEmbedding({num_embeddings}, {embedding_dim})", tp_size, group)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.group, self.padding_idx, self.sequence_parallel = group, padding_idx, sequence_parallel
        self.tp_size, self.tp_rank = size_of(group), rank_of(group)
        shard = Shard(
            0,
            self.tp_rank,
            self.tp_size,
            num_embeddings,
            padded_size=padded_size(num_embeddings, self.tp_size, divisible_by),
        )
        self.first_row = self.tp_rank * shard.local_size
        self.weight = nn.Parameter(torch.empty(shard.local_size, embedding_dim, device=device, dtype=dtype))
        mark(self.weight, shard)
        if self.weight.device.type != "meta":
            with cpu_seed(seed):
                draw(self.weight, shard, (num_embeddings, embedding_dim), init_method or nn.init.normal_)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """`[seq, batch]` → `[seq, batch, hidden]` (a piece `[seq/tp, …]` with sequence_parallel)."""
        check_group_serves(f"{type(self).__name__}({self.extra_repr()})", self.group, ids.device)
        if self.group is None:
            return F.embedding(ids, self.weight, self.padding_idx)
        local = ids - self.first_row
        elsewhere = (local < 0) | (local >= self.weight.size(0))
        partial = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        partial = partial.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        if self.sequence_parallel:
            return reduce_scatter_sequence(partial, self.group, 0)
        return reduce_from_region(partial, self.group)

    def extra_repr(self) -> str:
        """Sizes, as torch.nn.Embedding shows them, and how they are divided."""
        return f"{self.num_embeddings}, {self.embedding_dim}, tp={self.tp_size}"
