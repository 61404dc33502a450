"""Worlds of 4 ranks on CPUs over gloo and of 2 on NPUs over HCCL, kept for a module of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.npu import why_no_npu
from tests.harness.pool import RankPool, World

WORLDS = [("gloo", 4), ("hccl", 2)]


def _kept(pool: RankPool, backend: str, size: int) -> Iterator[World]:
    reason = why_no_npu() if backend == "hccl" else None
    if reason:
        pytest.skip(reason)
    with pool.world(size, backend) as world:
        yield world


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world[0]}{world[1]}")
def tp_ranks(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[World]:
    """4 ranks of one tensor-parallel group on CPUs, then 2 on NPUs."""
    yield from _kept(rank_pool, *request.param)


@pytest.fixture(scope="module", params=[2, 4], ids=lambda size: f"gloo{size}")
def cpu_ranks(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[World]:
    """2 or 4 ranks on CPUs, for what does not depend on the device."""
    yield from _kept(rank_pool, "gloo", request.param)
