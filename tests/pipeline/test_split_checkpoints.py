"""Checkpoints of Hugging Face models: the tensor-parallel degree changes with the stages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.pool import RankPool
from tests.pipeline import split_checkpoint_cases as cases
from tests.pipeline.conftest import Ranks, kept
from tests.pipeline.split_checkpoint_cases import Split
from tests.pipeline.test_three_axes import PRELOAD


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on CPUs."""
    rank_pool.preload(*PRELOAD)
    yield from kept(rank_pool, 4, "gloo")


def test_tp_and_pp_change(four: Ranks, tmp_path: Path) -> None:
    """A padded, tied vocabulary; merged projections (Phi-3); matrices held transposed (GPT-2)."""
    ways = [
        ("Llama", Split(2, 2, "zb-v", zero=1), Split(1, 4, "zb-h1")),
        ("Phi3", Split(1, 4), Split(2, 2, zero=1)),
        ("GPT2", Split(2, 2), Split(1, 4, zero=1)),
        ("GPT2", Split(2, 2, zero=1), Split(1, 4, universal=True)),
    ]
    four.run(cases.carry, four.backend, ways, str(tmp_path), timeout=240)
