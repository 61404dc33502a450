"""What a parameter of a tensor-parallel layer holds of the full one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from npu_plugins.tensor_parallel.errors import TensorParallelError


@dataclass(frozen=True)
class Shard:
    """One rank's part of a tensor that is divided along one dim.

    A tensor merged of several (query, key and value; gate and up) is divided part by part: the local tensor
    is the rank's slice of each part, in order. A length that `size` does not divide is padded at its end.

    Raises:
        TensorParallelError: the lengths do not divide, or disagree.
    """

    dim: int
    """The dim that is divided, counted from the front."""
    rank: int
    """Which of the shards this is."""
    size: int
    """How many shards there are."""
    full_size: int
    """Length of `dim` in the full tensor, without padding."""
    parts: tuple[int, ...] = ()
    """Lengths of the tensors that the full one is merged of, in order; () for one tensor."""
    padded_size: int | None = None
    """Length of `dim` over all shards with padding; None without."""

    def __post_init__(self) -> None:
        if self.parts and self.padded_size is not None:
            raise TensorParallelError(
                f"Shard: parts {self.parts} and padded_size {self.padded_size} cannot both be given"
            )
        if not 0 <= self.rank < self.size:
            raise TensorParallelError(
                f"Shard: rank {self.rank} is none of {self.size} shards; give 0 to {self.size - 1}"
            )
        if self.parts and sum(self.parts) != self.full_size:
            raise TensorParallelError(
                f"Shard: parts {self.parts} add up to {sum(self.parts)}, but full_size is {self.full_size}"
            )
        for length in self.parts or (self._padded,):
            if length % self.size or length < 1:
                raise TensorParallelError(
                    f"Shard: a length of {length} does not divide into {self.size} equal shards; pad it, or "
                    "choose a number of ranks that divides it"
                )
        if self._padded < self.full_size:
            raise TensorParallelError(
                f"Shard: padded_size {self.padded_size} is less than full_size {self.full_size}"
            )

    @property
    def _padded(self) -> int:
        return self.full_size if self.padded_size is None else self.padded_size

    @property
    def local_size(self) -> int:
        """Length of `dim` in the local tensor, padding included."""
        return self._padded // self.size

    @property
    def slices(self) -> tuple[tuple[int, int], ...]:
        """(start, stop) of each piece of the full tensor that the local one holds, in local order."""
        found, offset = [], 0
        for length in self.parts or (self._padded,):
            start = offset + self.rank * (length // self.size)
            stop = start + length // self.size
            found.append((min(start, self.full_size), min(stop, self.full_size)))
            offset += length
        return tuple(found)

    def of_rank(self, rank: int) -> Shard:
        """The shard that another rank holds."""
        return Shard(self.dim, rank, self.size, self.full_size, self.parts, self.padded_size)

    def take(self, full: torch.Tensor) -> torch.Tensor:
        """The local tensor of a full one: a new, contiguous tensor, zero where it is padding.

        Raises:
            TensorParallelError: `full` is not `full_size` long along `dim`.
        """
        self._check("full", full, self.full_size)
        pieces = [full.narrow(self.dim, start, stop - start) for start, stop in self.slices]
        held = sum(stop - start for start, stop in self.slices)
        if held < self.local_size:
            shape = list(full.shape)
            shape[self.dim] = self.local_size - held
            pieces.append(full.new_zeros(shape))
        return torch.cat(pieces, self.dim)

    def put(self, full: torch.Tensor, local: torch.Tensor) -> None:
        """Write the local tensor into its places of a full one; padding is dropped.

        Raises:
            TensorParallelError: a tensor has the wrong length along `dim`.
        """
        self._check("full", full, self.full_size)
        self._check("local", local, self.local_size)
        offset = 0
        for start, stop in self.slices:
            full.narrow(self.dim, start, stop - start).copy_(local.narrow(self.dim, offset, stop - start))
            offset += stop - start

    def _check(self, name: str, tensor: torch.Tensor, length: int) -> None:
        if tensor.dim() <= self.dim or tensor.size(self.dim) != length:
            raise TensorParallelError(
                f"Shard: the {name} tensor has shape {tuple(tensor.shape)}, but its dim {self.dim} must be "
                f"{length} long"
            )


def join(locals_: Sequence[torch.Tensor], shard: Shard) -> torch.Tensor:
    """The full tensor of all ranks' local ones, given in the order of ranks."""
    shape = list(locals_[0].shape)
    shape[shard.dim] = shard.full_size
    full = locals_[0].new_empty(shape)
    for rank, local in enumerate(locals_):
        shard.of_rank(rank).put(full, local)
    return full


def padded_size(size: int, ranks: int, divisible_by: int = 1) -> int:
    """`size` rounded up to a multiple of `divisible_by` × `ranks`."""
    unit = divisible_by * ranks
    return -(-size // unit) * unit


def mark(parameter: torch.nn.Parameter, shard: Shard | None) -> None:
    """Say on the parameter what it holds; one that is whole (None, or one shard only) gets no mark.

    `tensor_model_parallel` is Megatron's mark: DeepSpeed and Megatron count the gradient norm of a marked
    parameter on every rank, and that of an unmarked one once.
    """
    if shard is None or (shard.size == 1 and shard.padded_size in (None, shard.full_size)):
        return
    parameter.shard = shard
    parameter.tensor_model_parallel = True
    parameter.partition_dim = shard.dim
    parameter.partition_stride = max(1, len(shard.parts))


def shard_of(parameter: torch.Tensor) -> Shard | None:
    """What a parameter holds of the full one; None for a replicated one."""
    return getattr(parameter, "shard", None)


def gather_full(local: torch.Tensor, shard: Shard | None, group: dist.ProcessGroup | None) -> torch.Tensor:
    """The full tensor on every rank of the group (a collective; nothing is recorded for autograd).

    `local` is a parameter or anything of its shape, its gradient for example. A replicated one (shard None)
    is returned as a copy.
    """
    local = local.detach()
    if shard is None or group is None:
        return local.clone() if shard is None else join([local], shard)
    pieces = [torch.empty_like(local, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(pieces, local.contiguous(), group=group)
    return join(pieces, shard)
