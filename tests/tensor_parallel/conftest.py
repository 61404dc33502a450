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


def _whole(world: World) -> World:
    """Fresh ranks where an earlier test lost some."""
    if world.broken:
        world.restart()
    return world


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world[0]}{world[1]}")
def kept_tp_world(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[World]:
    """The world behind `tp_ranks`."""
    yield from _kept(rank_pool, *request.param)


@pytest.fixture(scope="module", params=[2, 4], ids=lambda size: f"gloo{size}")
def kept_cpu_world(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[World]:
    """The world behind `cpu_ranks`."""
    yield from _kept(rank_pool, "gloo", request.param)


@pytest.fixture
def tp_ranks(kept_tp_world: World) -> World:
    """4 ranks of one tensor-parallel group on CPUs, then 2 on NPUs."""
    return _whole(kept_tp_world)


@pytest.fixture
def cpu_ranks(kept_cpu_world: World) -> World:
    """2 or 4 ranks on CPUs, for what does not depend on the device."""
    return _whole(kept_cpu_world)
