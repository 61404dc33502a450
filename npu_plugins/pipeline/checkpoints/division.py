"""How tensor parallelism holds a parameter: which part of the whole, and whether the other way round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from npu_plugins.tensor_parallel.shard import Shard, join, shard_of


@dataclass(frozen=True)
class Division:
    """What one rank's tensor is of the whole, which is what one rank without tensor parallelism has."""

    shard: Shard | None = None
    """Its part; None: all."""
    transposed: bool = False
    """Whether it is held transposed, as transformers' Conv1D is when it is divided."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Division:
        """Return the division that a parameter's marks tell of."""
        return cls(shard_of(tensor), bool(getattr(tensor, "stored_transposed", False)))

    @classmethod
    def from_plain(cls, told: Mapping[str, Any] | None) -> Division:
        """Return the division that `plain` described; a whole tensor for None."""
        if told is None:
            return cls()
        shard = told["shard"]
        return cls(shard and Shard(**{**shard, "parts": tuple(shard["parts"])}), told["transposed"])

    def plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"shard": self.shard and asdict(self.shard), "transposed": self.transposed}

    def full_shape(self, local: Sequence[int]) -> list[int]:
        """Return the shape of the whole of which a tensor of shape `local` is this part."""
        shape = list(local)
        if self.shard is not None:
            shape[self.shard.dim] = self.shard.full_size
        return shape[::-1] if self.transposed else shape

    def local_shape(self, full: Sequence[int]) -> list[int]:
        """Return the shape of this part of a whole of shape `full`."""
        shape = list(full)[::-1] if self.transposed else list(full)
        if self.shard is not None:
            shape[self.shard.dim] = self.shard.local_size
        return shape

    def join(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Return the whole of all ranks' parts, in the order of ranks."""
        full = tensors[0] if self.shard is None else join(tensors, self.shard)
        return full.t() if self.transposed else full

    def take(self, full: torch.Tensor) -> torch.Tensor:
        """Return this part of the whole."""
        full = full.t() if self.transposed else full
        return full if self.shard is None else self.shard.take(full)

    def unpadded(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the whole of one that has all parts put together with their padding, as they are held."""
        full = padded if self.shard is None else padded.narrow(self.shard.dim, 0, self.shard.full_size)
        return full.t() if self.transposed else full
