"""What one layout saved is, to the bit, what any other layout has after loading it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.state.layout_cases import Case, check_chain
from tests.harness.pool import RankPool
from tests.pipeline.conftest import Ranks, kept

CHAINS = [
    [
        Case(2, 2, 1, family="qwen2"),
        Case(1, 2, 2, stage=1, family="qwen2"),
        Case(2, 1, 2, stage=2, family="qwen2"),
        Case(1, 1, 4, stage=3, family="qwen2"),
        Case(2, 2, 1, family="qwen2"),
    ],
    [
        Case(1, 4, 1, precision="bf16", family="gpt2"),
        Case(2, 1, 2, stage=1, precision="bf16", family="gpt2"),
        Case(1, 1, 4, stage=3, precision="bf16", family="gpt2", zero={"sub_group_size": 3000}),
        Case(2, 2, 1, precision="bf16", family="gpt2"),
        Case(
            1, 1, 4, stage=2, precision="bf16", family="gpt2", zero={"offload_optimizer": {"device": "cpu"}}
        ),
    ],
    [
        Case(2, 1, 2, stage=2, optimizer="SGD", zero={"round_robin_gradients": True}),
        Case(4, 1, 1, optimizer="SGD", family="llama"),
        Case(1, 1, 4, stage=1, optimizer="SGD", zero={"round_robin_gradients": True}),
        Case(1, 1, 4, stage=3, optimizer="SGD", zero={"offload_optimizer": {"device": "cpu"}}),
    ],
]
"""In each, a layout loads what the one before it saved."""


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on CPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "gloo")


@pytest.mark.parametrize("cases", CHAINS, ids=["qwen2-fp32", "gpt2-bf16", "llama-sgd"])
def test_every_layout_saves_again_what_it_loaded(four: Ranks, cases: list[Case], tmp_path: Path) -> None:
    check_chain(four, cases, tmp_path)
