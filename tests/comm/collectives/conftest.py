"""Three ranks, each with an NPU over HCCL and the host over gloo, kept for a module of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.accelerator.conftest import KeptWorld
from tests.harness.npu import why_no_npu
from tests.harness.pool import RankPool


@pytest.fixture(scope="module")
def three_ranks(rank_pool: RankPool) -> Iterator[KeptWorld]:
    """An odd number: averages are rounded, and tensors do not divide evenly."""
    reason = why_no_npu()
    if reason:
        pytest.skip(reason)
    with rank_pool.world(3, "cpu:gloo,npu:hccl") as world:
        yield KeptWorld(world)
