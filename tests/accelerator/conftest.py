"""Worlds of ranks with DeepSpeed imported, kept for a whole module of tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.npu import why_no_npu
from tests.harness.outcome import RankFailure
from tests.harness.pool import RankPool, World


class KeptWorld:
    """A world that outlives a failed run: fresh ranks take the place of those that failed."""

    def __init__(self, world: World) -> None:
        self._world = world

    def run(self, function: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Like `World.run`."""
        if self._world.broken:
            self._world.restart()
        try:
            return self._world.run(function, *args, **kwargs)
        except RankFailure:
            self._world.kill()
            raise


def _keep(pool: RankPool, size: int) -> Iterator[KeptWorld]:
    reason = why_no_npu()
    if reason:
        pytest.skip(reason)
    pool.preload("deepspeed")
    with pool.world(size, "hccl") as world:
        yield KeptWorld(world)


@pytest.fixture(scope="module")
def one_rank(rank_pool: RankPool) -> Iterator[KeptWorld]:
    """One rank on one NPU."""
    yield from _keep(rank_pool, 1)


@pytest.fixture(scope="module")
def two_ranks(rank_pool: RankPool) -> Iterator[KeptWorld]:
    """Two ranks on two NPUs."""
    yield from _keep(rank_pool, 2)
