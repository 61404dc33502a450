"""LoRA at tp × pp × dp against peft and the plain Trainer in one process with the same global batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness.pool import RankPool
from tests.hf_integration.divided import Record, train, train_on_rank
from tests.hf_integration.lora.adapting import PlainPeft, adapting
from tests.pipeline.conftest import Ranks, kept

TOLERANCE = 1e-5
FAMILIES = ("llama", "qwen2", "gpt2")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Plain peft and the plain Trainer, by family."""
    runs = {family: replace(adapting(family), kind=PlainPeft) for family in FAMILIES}
    return {family: train(run, tmp_path_factory.mktemp(family)) for family, run in runs.items()}


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on CPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "gloo")


def compare(records: list[Record], wanted: Record) -> None:
    """Assert that every rank logged what one process did."""
    for record in records:
        for key in ("loss", "grad_norm"):
            assert record.values(key) == pytest.approx(wanted.values(key), rel=TOLERANCE), key


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", [(2, 2, 1), (1, 2, 2), (2, 1, 2), (4, 1, 1)])
def test_losses_and_norms(
    four: Ranks, one: dict[str, Record], family: str, layout: tuple[int, int, int], tmp_path: Path
) -> None:
    run = adapting(family).at(*layout)
    compare(four.run(train_on_rank, run, tmp_path, "gloo", timeout=250), one[family])
