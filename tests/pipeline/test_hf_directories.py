"""Hugging Face directories into pipelines with tensor parallelism and out again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.pool import RankPool
from tests.pipeline import hf_directory_cases as cases
from tests.pipeline.conftest import Ranks, kept
from tests.pipeline.test_three_axes import PRELOAD


@pytest.fixture(scope="module", params=["gloo", "hccl"])
def four_of_each(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Four ranks on CPUs, then four on NPUs."""
    rank_pool.preload(*PRELOAD)
    yield from kept(rank_pool, 4, request.param)


def test_round_trips(four_of_each: Ranks) -> None:
    four_of_each.run(cases.round_trips, four_of_each.backend, timeout=120)


def test_trained_then_saved(four_of_each: Ranks) -> None:
    four_of_each.run(cases.trained_then_saved, four_of_each.backend, timeout=120)


@pytest.fixture(scope="module")
def four_cpus(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on CPUs."""
    rank_pool.preload(*PRELOAD)
    yield from kept(rank_pool, 4, "gloo")


def test_every_source_is_the_same_model(four_cpus: Ranks) -> None:
    four_cpus.run(cases.every_source_is_the_same_model, four_cpus.backend)


def test_refusals(four_cpus: Ranks) -> None:
    four_cpus.run(cases.refusals, four_cpus.backend)


def test_damaged_directories(four_cpus: Ranks) -> None:
    four_cpus.run(cases.damaged_directories, four_cpus.backend)


def test_a_rank_holds_no_more_than_its_share_and_a_fifth(four_cpus: Ranks) -> None:
    peaks = four_cpus.run(cases.memory, timeout=120)
    print("host memory of the ranks, in units of their shares:", *(f"{peak:.3f}" for peak in peaks))
    assert max(peaks) <= 1.2, peaks
