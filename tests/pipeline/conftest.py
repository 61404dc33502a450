"""Worlds of ranks with DeepSpeed imported, on CPUs over gloo and on NPUs over HCCL, kept for a module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.accelerator.conftest import KeptWorld
from tests.harness.npu import why_no_npu
from tests.harness.pool import RankPool


@dataclass
class Ranks:
    """A kept world and what it is made of."""

    world: KeptWorld
    size: int
    backend: str

    def run(self, function: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Run on every rank."""
        return self.world.run(function, *args, **kwargs)


def kept(pool: RankPool, size: int, backend: str) -> Iterator[Ranks]:
    """Open a world with DeepSpeed for as long as a fixture lives."""
    reason = why_no_npu()
    if reason:
        pytest.skip(reason)
    pool.preload("deepspeed", "npu_plugins.pipeline.engine")
    with pool.world(size, backend) as world:
        yield Ranks(KeptWorld(world), size, backend)


@pytest.fixture(scope="module", params=["gloo", "hccl"])
def two(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Two ranks on CPUs, then two on NPUs."""
    yield from kept(rank_pool, 2, request.param)


@pytest.fixture(scope="module")
def two_cpus(rank_pool: RankPool) -> Iterator[Ranks]:
    """Two ranks on CPUs."""
    yield from kept(rank_pool, 2, "gloo")


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on CPUs."""
    yield from kept(rank_pool, 4, "gloo")


@pytest.fixture(scope="module")
def two_npus(rank_pool: RankPool) -> Iterator[Ranks]:
    """Two ranks on NPUs."""
    yield from kept(rank_pool, 2, "hccl")
