"""Checkpoints of the pipeline engine: told of, verified, and converted to what others go on from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint import pipeline_cases
from tests.harness.pool import RankPool
from tests.pipeline.conftest import Ranks, kept
from tests.pipeline.test_three_axes import PRELOAD


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on CPUs."""
    rank_pool.preload(*PRELOAD)
    yield from kept(rank_pool, 4, "gloo")


def test_a_split_model_becomes_plain_sharded_and_universal(four: Ranks, tmp_path: Path) -> None:
    four.run(pipeline_cases.to_deepspeed, str(tmp_path))


def test_half_precision_with_tensor_parallelism(four: Ranks, tmp_path: Path) -> None:
    four.run(pipeline_cases.half_precision, str(tmp_path))


def test_own_layers_become_universal(four: Ranks, tmp_path: Path) -> None:
    four.run(pipeline_cases.own_layers, str(tmp_path))
