"""What one layout saved is, to the bit, what any other layout has after loading it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoint.state.layout_cases import Case, check_chain
from tests.harness.pool import RankPool
from tests.pipeline.conftest import Ranks, kept

CPU = {"device": "cpu"}
CHAINS = {
    "AdamW": [
        Case(2, 2, 1),
        Case(1, 2, 2, stage=1),
        Case(2, 1, 2, stage=2, zero={"round_robin_gradients": True}),
        Case(1, 1, 4, stage=3),
        Case(4, 1, 1),
    ],
    "SGD": [
        Case(1, 4, 1),
        Case(2, 1, 2, stage=1),
        Case(1, 1, 4, stage=3, zero={"sub_group_size": 3000, "offload_param": CPU, "offload_optimizer": CPU}),
        Case(2, 2, 1),
        Case(1, 1, 4, stage=2, zero={"offload_optimizer": CPU}),
    ],
}
"""By optimizer: each layout loads what the one before it saved."""


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on CPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "gloo")


@pytest.mark.parametrize(
    ("optimizer", "precision", "family"), [("AdamW", "fp32", "llama"), ("SGD", "bf16", "gpt2")]
)
def test_every_layout_saves_again_what_it_loaded(
    four: Ranks, optimizer: str, precision: str, family: str, tmp_path: Path
) -> None:
    chain = [
        replace(case, optimizer=optimizer, precision=precision, family=family) for case in CHAINS[optimizer]
    ]
    check_chain(four, chain, tmp_path)
