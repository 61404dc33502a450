"""What runs on the ranks to compare a sharded module with the unsharded one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from npu_plugins.tensor_parallel import gather_full, shard_of

BOUND = 1e-6  # relative to the largest element, fp32


def device() -> torch.device:
    """This rank's device: its NPU where the world is one of HCCL."""
    kind = "npu" if "npu" in dist.get_backend_config(dist.group.WORLD) else "cpu"
    return torch.device(kind, dist.get_rank()) if kind == "npu" else torch.device(kind)


def group() -> dist.ProcessGroup:
    """The tensor-parallel group of these tests: the whole world."""
    return dist.group.WORLD


def assert_close(what: Any, actual: torch.Tensor, expected: torch.Tensor, bound: float = BOUND) -> None:
    """The largest difference is below `bound` × the largest expected element."""
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    assert actual.shape == expected.shape, f"{what}: {tuple(actual.shape)} for {tuple(expected.shape)}"
    assert not actual.isnan().any(), f"{what}: nan"
    error = (actual - expected).abs().max().item() / expected.abs().max().clamp(min=1e-30).item()
    assert error <= bound, f"{what}: off by {error:.1e}"


def assert_same_gradients(
    what: Any, own: torch.nn.Module, full: torch.nn.Module, bound: float = BOUND
) -> None:
    """Every gradient of the sharded module, gathered, is that of the unsharded one's parameter."""
    pairs = list(zip(own.named_parameters(), full.parameters(), strict=True))
    for (name, mine), theirs in pairs:
        assert mine.grad is not None, f"{what}: {name} has no gradient"
        assert theirs.grad is not None
        assert_close((what, name), gather_full(mine.grad, shard_of(mine), group()), theirs.grad, bound)


def own_piece(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's piece along `dim`."""
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """`values` `[a, b, c]` with other strides: the same numbers, or the first of them repeated."""
    if layout == "transposed":
        return values.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "expanded":
        return values[:1, :1].expand_as(values)
    if layout == "strided":
        return torch.stack([values, values], -1)[..., 0]
    return values.contiguous()


def recomputed(function: Callable[..., Any], how: str) -> Callable[..., Any]:
    """`function` under activation checkpointing."""
    if how == "kept":
        return function
    return lambda *args: checkpoint(function, *args, use_reentrant=how == "reentrant")


def normal(seed: int, *shape: int) -> torch.Tensor:
    """Numbers that are the same on every rank, on the CPU."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


OPERATORS = {
    "all_reduce": "c10d::allreduce_",
    "all_gather": "c10d::allgather_",
    "all_gather_single": "c10d::_allgather_base_",
    "reduce_scatter_single": "c10d::_reduce_scatter_base_",
}
"""The operator that each collective ends in, whichever way it is called."""


def count_calls(names: Iterable[str], function: Callable[[], Any]) -> dict[str, int]:
    """How often `function` runs each of these collectives, in whatever thread."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    counted = Counter(event.name for event in profile.events())
    return {name: counted[OPERATORS[name]] for name in names}
