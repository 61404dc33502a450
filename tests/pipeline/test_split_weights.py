"""The weights of split models: whose they are, where they come from, and how much memory they take."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.pool import RankPool
from tests.pipeline import split_weights_cases as cases
from tests.pipeline.conftest import Ranks
from tests.pipeline.hf_models import FAMILIES, MODULES


@pytest.fixture(scope="module", autouse=True)
def imported(rank_pool: RankPool) -> None:
    """The models' modules, imported once for all ranks."""
    rank_pool.preload("deepspeed", *MODULES)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drawn_weights_are_those_of_transformers(two_cpus: Ranks, dtype: str) -> None:
    two_cpus.run(cases.drawn, two_cpus.backend, dtype)


def test_at_any_number_of_stages(four: Ranks) -> None:
    four.run(cases.drawn, four.backend, "float32", FAMILIES[-2:])


def test_weights_of_a_model_and_of_a_directory(two: Ranks, tmp_path: Path) -> None:
    two.run(cases.taken_and_read, two.backend, str(tmp_path))


def test_a_stage_reads_its_own_tensors(two_cpus: Ranks, tmp_path: Path) -> None:
    two_cpus.run(cases.reads_its_own, two_cpus.backend, str(tmp_path))


@pytest.mark.parametrize("source", ["directory", "configuration"])
def test_a_stage_takes_no_more_memory_than_its_share_and_a_fifth(
    two_cpus: Ranks, tmp_path: Path, source: str
) -> None:
    two_cpus.run(cases.memory, two_cpus.backend, str(tmp_path), source, timeout=120)
