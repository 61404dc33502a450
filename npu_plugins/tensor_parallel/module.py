"""What every module here has: its group, and parameters that keep saying what they hold."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.tensor_parallel.groups import rank_of, size_of
from npu_plugins.tensor_parallel.shard import Shard, mark

_SHARED = ("group", "weight_gradients")  # by all copies of a module


class TensorParallelModule(nn.Module):
    """A module whose parameters are divided over a process group.

    torch makes new Parameter objects in `to_empty`, in `load_state_dict(assign=True)` and in copies, without
    what was written on the old ones: a sharded parameter would be taken for a replicated one, in the gradient
    norm and in checkpoints. So the module remembers, and marks the new ones.

    Args:
        group: the tensor-parallel group, None for one rank.

    Attributes:
        tp_size: ranks of the group.
        tp_rank: own rank within it.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.group = group
        self.tp_size, self.tp_rank = size_of(group), rank_of(group)
        self._shards: dict[str, Shard | None] = {}

    def hold(
        self,
        name: str,
        shape: list[int],
        shard: Shard | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> nn.Parameter:
        """Make and mark the parameter `name`, of which the full one has `shape`; nothing is drawn yet."""
        if shard is not None:
            shape = [*shape[: shard.dim], shard.local_size, *shape[shard.dim + 1 :]]
        parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.register_parameter(name, parameter)
        self._shards[name] = shard
        mark(parameter, shard)
        return parameter

    def mark_again(self) -> None:
        """Mark the parameters that are there now."""
        for name, shard in self._shards.items():
            if self._parameters.get(name) is not None:
                mark(self._parameters[name], shard)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        result = super()._apply(fn, recurse)
        self.mark_again()
        return result

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.mark_again()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        for name, value in self.__dict__.items():
            made.__dict__[name] = value if name in _SHARED else copy.deepcopy(value, memo)
        made.mark_again()
        return made
