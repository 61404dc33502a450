"""One world of four ranks for all scenarios: on CPUs, as what a card does is not what they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from tests.harness.pool import RankPool
from tests.hf_integration.divided import Record, Run, Sentences, train_on_rank
from tests.pipeline.conftest import Ranks, kept

small = partial(Run, layers=2, micro_batches=2)
"""A run of a model with a layer for each of two stages, and with few batches in a step."""
Trained = Callable[[Run], list[Record]]


UNEVEN = 13
"""Sequences, in micro-batches of 2: the last one is half, and another replica has none beside it."""


class Stream(IterableDataset):
    """Sequences without places and without a length."""

    def __init__(self, count: int) -> None:
        self.rows = Sentences(count, seed=1).rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


class Rising:
    """A metric that is best at the second evaluation."""

    def __init__(self) -> None:
        self.left = [1.0, 3.0, 2.0, 2.5]

    def __call__(self, prediction: Any) -> dict[str, float]:
        return {"rising": self.left.pop(0) if self.left else 0.0}


@pytest.fixture(scope="package")
def four_cpus(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on CPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "gloo")


@pytest.fixture
def on_four(four_cpus: Ranks, tmp_path: Path) -> Trained:
    """Trains on four ranks and returns what each of them logged."""

    def trained(run: Run) -> list[Record]:
        folder = tmp_path / f"{run.tp}{run.pp}{run.dp}"
        return four_cpus.run(train_on_rank, run, folder, "gloo", timeout=250)

    return trained
