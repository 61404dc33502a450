"""Weights drawn so that the full matrix is the same however many ranks share it."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.shard import Shard

InitMethod = Callable[[torch.Tensor], Any]

BLOCK_ELEMENTS = 1 << 20
_ROWS = 16  # torch draws normal numbers 16 at a time: a block of so many rows never cuts through them


@contextmanager
def cpu_seed(seed: int | None) -> Iterator[None]:
    """Within: torch's CPU generator starts from `seed`, and goes on as before afterwards; None: no change.

    Not torch.manual_seed, which would seed every device as well.
    """
    if seed is None:
        yield
        return
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


def kaiming_uniform(weight: torch.Tensor) -> torch.Tensor:
    """What torch.nn.Linear draws its weight with; every number depends on the row length alone."""
    return torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))


@torch.no_grad()
def draw(local: torch.Tensor, shard: Shard | None, init_method: InitMethod, by_rows: bool = False) -> None:
    """Draw the full tensor on the CPU with `init_method` and keep the local part of it; padding is zero.

    Every rank draws the whole stream, so that no number depends on how many ranks there are: a layer drawn
    under a seed is the one torch.nn.Linear or torch.nn.Embedding would have drawn.

    Args:
        local: the parameter `[rows, …]` or `[length]` to fill, on any device.
        shard: what it holds of the full tensor, or None if all.
        init_method: fills the tensor that it is given, as torch.nn.init's functions do.
        by_rows: `init_method` may be given blocks of rows, one after another, instead of the full tensor:
            nothing as large as the full tensor is made then.
    """
    shape = list(local.shape)
    if shard is not None:
        shape[shard.dim] = shard.full_size
    step = max(_ROWS, BLOCK_ELEMENTS // math.prod(shape[1:]) // _ROWS * _ROWS) if by_rows else shape[0]
    local.zero_()
    start = 0
    while start < shape[0]:
        # The last block takes what would be too little for a block of its own.
        stop = shape[0] if shape[0] - start < 2 * step else start + step
        block = torch.empty([stop - start, *shape[1:]], dtype=local.dtype, device="cpu")
        init_method(block)
        _keep(local, shard, block, start)
        start = stop


def _keep(local: torch.Tensor, shard: Shard | None, block: torch.Tensor, first: int) -> None:
    """Copy what the rank holds of the rows `first`, `first` + 1, … of the full tensor."""
    if shard is None or shard.dim > 0:
        local[first : first + block.size(0)].copy_(block if shard is None else shard.take(block))
        return
    offset = 0
    for start, stop in shard.slices:
        low, high = max(start, first), min(stop, first + block.size(0))
        if low < high:
            local[offset + low - start : offset + high - start].copy_(block[low - first : high - first])
        offset += stop - start


def check_same_stream(owner: str, group: dist.ProcessGroup | None) -> None:
    """Refuse ranks whose CPU generators have drifted apart: their shards would belong to different matrices.

    Raises:
        TensorParallelError: the ranks of the group would go on drawing different numbers.
    """
    if group is None:
        return
    own = zlib.crc32(torch.get_rng_state().numpy().tobytes())
    states: list[int] = [0] * group.size()
    dist.all_gather_object(states, own, group=group)
    if len(set(states)) > 1:
        differing = ", ".join(str(rank) for rank, state in enumerate(states) if state != states[0])
        raise TensorParallelError(
            f"{owner}: ranks {differing} of the tensor-parallel group draw other random numbers than rank 0, "
            "so their shards would be of different matrices; call torch.manual_seed with one seed on all of "
            "them before the model is built, or pass seed=…"
        )
