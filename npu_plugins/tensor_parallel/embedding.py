"""An embedding whose vocabulary is divided over the ranks of a tensor-parallel group."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from npu_plugins.tensor_parallel.collectives import reduce_from_region, reduce_scatter_sequence
from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.groups import check_group_serves, choose_group
from npu_plugins.tensor_parallel.initialize import InitMethod, check_same_stream, cpu_seed, draw
from npu_plugins.tensor_parallel.module import TensorParallelModule
from npu_plugins.tensor_parallel.shard import Shard, padded_size


class VocabParallelEmbedding(TensorParallelModule):
    """torch.nn.Embedding with its rows divided over the group (Megatron-LM, arXiv 1909.08053 §3).

    Every rank looks up the ids of its own rows; the sum over the group is the embedding, exactly: all other
    summands are zero. A vocabulary that the ranks do not divide gets zero rows at its end.

    Args:
        num_embeddings: ids, over all ranks.
        embedding_dim: length of the output's last dim.
        tp_size: ranks to divide over. Without `group` the default process group must have that many.
        group: the tensor-parallel process group (`mesh.group("tp")`); None with tp_size None or 1: one rank.
        padding_idx: the id whose row starts at zero and gets no gradient.
        divisible_by: rows are padded up to a multiple of this × ranks.
        sequence_parallel: whether the output is scattered along the sequence, dim 0 of `ids`.
        init_method: fills the full `[num_embeddings, embedding_dim]` matrix, drawn alike for every tp. None:
            what torch.nn.Embedding draws.
        seed: of the CPU generator while drawing. None: the generator as it stands, which must be the same on
            all ranks of the group; this is checked, with a collective.
        device: of the weight; on "meta" nothing is drawn.
        dtype: of the weight.

    Attributes:
        weight: `[rows/tp, embedding_dim]`; `shard_of(weight)` says which rows.

    Raises:
        TensorParallelError: the group does not fit, or padding_idx is no id.
    """

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
        owner = f"VocabParallelEmbedding({num_embeddings}, {embedding_dim})"
        group = choose_group(owner, tp_size, group)
        super().__init__(group)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise TensorParallelError(
                f"{owner}: padding_idx {padding_idx} is none of the {num_embeddings} ids; give 0 to "
                f"{num_embeddings - 1}, or a negative one counted from the end"
            )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx if padding_idx is None else padding_idx % num_embeddings
        self.sequence_parallel = sequence_parallel
        padded = padded_size(num_embeddings, self.tp_size, divisible_by)
        self._shard = Shard(0, self.tp_rank, self.tp_size, num_embeddings, padded_size=padded)
        self.first_row = self.tp_rank * self._shard.local_size
        self.hold("weight", [num_embeddings, embedding_dim], self._shard, device, dtype)
        self._served: str | None = None
        if self.weight.device.type != "meta":
            if seed is None:
                check_same_stream(owner, group)
            with cpu_seed(seed):
                draw(self.weight, self._shard, init_method or nn.init.normal_, by_rows=init_method is None)
            if self._local_padding_idx is not None:
                nn.init.zeros_(self.weight[self._local_padding_idx].detach())

    @property
    def _local_padding_idx(self) -> int | None:
        """The row of padding_idx, if it is one of this rank's."""
        if self.padding_idx is None:
            return None
        row = self.padding_idx - self.first_row
        return row if 0 <= row < self._shard.local_size else None

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up `ids`.

        Args:
            ids: integers `[seq, batch]`, or of any other shape without sequence_parallel; the same on all
                ranks of the group.

        Returns:
            `[seq, batch, hidden]`, with sequence_parallel `[seq/tp, batch, hidden]`.

        Raises:
            TensorParallelError: an id is out of range (on a CPU; elsewhere the device's lookup reports it),
                the sequence cannot be scattered, or the group does not serve the device of the ids.
        """
        if ids.device.type != self._served:
            check_group_serves(str(self), self.group, ids.device)
            self._served = ids.device.type
        valid = (ids >= 0) & (ids < self.num_embeddings)
        if ids.device.type == "cpu" and not valid.all():
            raise TensorParallelError(
                f"{self}: id {ids[~valid][0].item()} is none of the {self.num_embeddings} of the vocabulary; "
                "check that tokenizer and model belong together"
            )
        local = ids - self.first_row
        elsewhere = (local < 0) | (local >= self.weight.size(0))
        # An invalid id points behind the last row on every rank: the lookup itself refuses it, without the
        # wait for the device that reading `valid` here would cost.
        rows = local.masked_fill(elsewhere, 0).masked_fill(~valid, self.weight.size(0))
        partial = F.embedding(rows, self.weight, self._local_padding_idx)
        if self.group is None:
            return partial
        partial = partial.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        if self.sequence_parallel:
            return reduce_scatter_sequence(partial, self.group, 0)
        return reduce_from_region(partial, self.group)

    def extra_repr(self) -> str:
        """Sizes, as torch.nn.Embedding shows them, and how they are divided."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, tp={self.tp_size}"

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"
