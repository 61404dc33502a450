"""Four ranks with DeepSpeed imported, kept for a whole module of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.accelerator.conftest import KeptWorld
from tests.harness.npu import why_no_npu
from tests.harness.pool import RankPool


@pytest.fixture(scope="module")
def four_ranks(rank_pool: RankPool) -> Iterator[KeptWorld]:
    """Four ranks on four NPUs."""
    reason = why_no_npu()
    if reason:
        pytest.skip(reason)
    rank_pool.preload("deepspeed")
    with rank_pool.world(4, "hccl") as world:
        yield KeptWorld(world)
