"""Several collectives in one call give what the single ones give."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from npu_plugins.comm import CommError, collectives
from tests.accelerator.conftest import KeptWorld
from tests.comm.collectives.reference import same, values

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.bool,
    torch.complex64,
)


def mine(index: int, count: int, device: str) -> torch.Tensor:
    return values(DTYPES[index], 10 * dist.get_rank() + index, count).to(device)


def finished(handle: Any, later: bool) -> None:
    assert (handle is not None) == later
    if later:
        handle.wait(timedelta(seconds=60))


def differences(device: str, later: bool) -> list[str]:
    """On a rank: for what the coalesced collectives and the single ones differ."""
    found = []
    indices = range(len(DTYPES))
    for op in (ReduceOp.SUM, ReduceOp.MAX):
        kept = [i for i in indices if op == ReduceOp.SUM or not DTYPES[i].is_complex]
        together, single = ([mine(i, 6 + 3 * i, device) for i in kept] for _ in range(2))
        finished(collectives.all_reduce_coalesced(together, op, async_op=later), later)
        for tensor in single:
            collectives.all_reduce(tensor, op)
        found += [
            f"all_reduce {a.dtype}" for a, b in zip(together, single, strict=True) if not same(a, b.cpu())
        ]
        inputs = [mine(i, 6 + 3 * i, device) for i in kept]
        together, single = ([each.new_empty(each.numel() // 3) for each in inputs] for _ in range(2))
        finished(collectives.reduce_scatter_coalesced(together, inputs, op, async_op=later), later)
        for output, tensor in zip(single, inputs, strict=True):
            collectives.reduce_scatter_tensor(output, tensor, op)
        found += [
            f"reduce_scatter {a.dtype}" for a, b in zip(together, single, strict=True) if not same(a, b.cpu())
        ]
    inputs = [mine(i, 2 + i, device) for i in indices]
    together, single = ([each.new_empty(3 * each.numel()) for each in inputs] for _ in range(2))
    finished(collectives.all_gather_coalesced(together, inputs, async_op=later), later)
    for output, tensor in zip(single, inputs, strict=True):
        collectives.all_gather_into_tensor(output, tensor)
    found += [f"all_gather {a.dtype}" for a, b in zip(together, single, strict=True) if not same(a, b.cpu())]
    return found


@pytest.mark.parametrize("device", ["npu", "cpu"])
def test_together_as_one_by_one(three_ranks: KeptWorld, device: str) -> None:
    for later in (False, True):
        assert three_ranks.run(differences, device, later) == [[]] * 3


def test_as_many_outputs_as_inputs() -> None:
    with pytest.raises(CommError, match="1 inputs need as many outputs, and 2 were given"):
        collectives.all_gather_coalesced([torch.ones(2)] * 2, [torch.ones(1)])
