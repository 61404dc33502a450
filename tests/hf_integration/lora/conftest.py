"""A world of ranks for all tests of LoRA."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.pool import RankPool
from tests.pipeline.conftest import Ranks, kept


@pytest.fixture(scope="package")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on simulated NPUs."""
    rank_pool.preload("hf_integration.job")
    yield from kept(rank_pool, 4, "hccl")
