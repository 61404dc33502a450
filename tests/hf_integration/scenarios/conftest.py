"""One world of four simulated NPUs for all scenarios, and the models and data that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.pool import RankPool
from tests.hf_integration.divided import Record, Run, train_on_rank
from tests.pipeline.conftest import Ranks, kept

Trained = Callable[[Run], list[Record]]


@pytest.fixture(scope="package")
def four_npus(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on simulated NPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "hccl")


@pytest.fixture
def on_four(four_npus: Ranks, tmp_path: Path) -> Trained:
    """Trains on four ranks and returns what each of them logged."""

    def trained(run: Run) -> list[Record]:
        folder = tmp_path / f"{run.tp}{run.pp}{run.dp}"
        return four_npus.run(train_on_rank, run, folder, "hccl", timeout=250)

    return trained
