"""Weights drawn so that the full matrix is the same however many ranks share it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from npu_plugins.tensor_parallel.shard import Shard

InitMethod = Callable[[torch.Tensor], Any]
_ROWS = 16  # normal_ draws 16 numbers at a time: blocks of rows must not cut through them
_BLOCK_ELEMENTS = 1 << 20


@contextmanager
def cpu_seed(seed: int | None) -> Iterator[None]:
    """Within: torch's CPU generator starts from `seed`, and goes on as before afterwards; None changes nothing.

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
    """What torch.nn.Linear draws its weight with."""
    return torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))


@torch.no_grad()
def draw(
    local: torch.Tensor, shard: Shard | None, full_shape: tuple[int, ...], init_method: InitMethod
) -> None:
    """Draw the full tensor `[rows, …]` on the CPU with `init_method` and keep the local part of it.

    Every rank draws the whole stream, so that no rank's part depends on how many there are.
    """
    full = torch.empty(full_shape, dtype=local.dtype)
    init_method(full)
    local.copy_(full if shard is None else shard.take(full))
