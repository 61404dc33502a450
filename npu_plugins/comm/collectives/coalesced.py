"""Several collectives as one call of the backend, for every dtype, with an explicit group.

HCCL and NCCL take them together (torch's coalescing manager); on other backends, and where a tensor is
reduced in two steps, they are begun one after the other. Results are those of the single collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.comm.collectives import reductions
from npu_plugins.comm.collectives.copies import all_gather_into_tensor, backend_for
from npu_plugins.comm.collectives.dtypes import SUM
from npu_plugins.comm.collectives.work import Pending, settle
from npu_plugins.comm.errors import CommError

TOGETHER = ("hccl", "nccl")
"""Backends that take several collectives in one call."""


def all_reduce_coalesced(
    tensors: Sequence[torch.Tensor],
    op: Any = SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Pending | None:
    """Reduce each of the tensors, in place; shapes and dtypes may differ. See `reductions.all_reduce`."""
    return _each(
        tensors,
        lambda tensor, later: reductions.all_reduce(tensor, op, group, later),
        [reductions.native(tensor, op, group) for tensor in tensors],
        group,
        async_op,
    )


def all_gather_coalesced(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Pending | None:
    """Gather the ranks' tensors of each input into the output beside it. See `copies.all_gather_into_tensor`.

    Raises:
        CommError: there are more of the ones than of the others.
    """
    pairs = _pairs(outputs, inputs)
    return _each(
        pairs,
        lambda pair, later: all_gather_into_tensor(pair[0], pair[1], group, later),
        [True] * len(pairs),
        group,
        async_op,
    )


def reduce_scatter_coalesced(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    op: Any = SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Pending | None:
    """Reduce each input and give each rank its part, in the output beside it.

    See `reductions.reduce_scatter_tensor`.

    Raises:
        CommError: there are more of the ones than of the others.
    """
    pairs = _pairs(outputs, inputs)
    return _each(
        pairs,
        lambda pair, later: reductions.reduce_scatter_tensor(pair[0], pair[1], op, group, later),
        [reductions.native(whole, op, group) for _, whole in pairs],
        group,
        async_op,
    )


def _each(
    items: Sequence[Any],
    call: Callable[[Any, bool], Any],
    native: Sequence[bool],
    group: dist.ProcessGroup | None,
    async_op: bool,
) -> Pending | None:
    """Do all of them: those that the backend does by itself, and of one dtype, in one call of it."""
    works: list[Any] = []
    member = dist.get_rank(group) >= 0  # torch warns others, call by call
    for alike in _alike(item for item, by_itself in zip(items, native, strict=True) if by_itself):
        if len(alike) > 1 and member and backend_for(_first(alike[0]), group) in TOGETHER:
            # DeepSpeed uses torch's manager too; torch 2.13 has no public one.
            with dist.distributed_c10d._coalescing_manager(group, async_ops=True) as manager:
                for item in alike:
                    call(item, False)
            works += manager.works
        else:
            works += [call(item, True) for item in alike]
    works += [call(item, True) for item, by_itself in zip(items, native, strict=True) if not by_itself]
    return settle(works, lambda: None, async_op)


def _alike(items: Iterable[Any]) -> list[list[Any]]:
    found: dict[tuple[torch.dtype, torch.device], list[Any]] = {}
    for item in items:
        tensor = _first(item)
        found.setdefault((tensor.dtype, tensor.device), []).append(item)
    return list(found.values())


def _first(item: Any) -> torch.Tensor:
    return item if isinstance(item, torch.Tensor) else item[0]


def _pairs(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if len(outputs) != len(inputs):
        raise CommError(f"{len(inputs)} inputs need as many outputs, and {len(outputs)} were given")
    return list(zip(outputs, inputs, strict=True))
