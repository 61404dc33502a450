"""A run that stops and goes on at another layout ends as the one that never stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness.pool import RankPool
from tests.hf_integration.divided import Record, Run, train, train_on_rank
from tests.pipeline.conftest import Ranks, kept

TOLERANCE = 1e-5
SAVING = {"save_strategy": "steps", "save_steps": 5, "allow_layout_change": True}
Layout = tuple[int, int, int]
LAYOUTS: dict[int, list[tuple[str, list[Layout]]]] = {
    2: [("qwen2", [(2, 1, 1), (1, 2, 1)])],
    4: [("gpt2", [(2, 2, 1), (1, 2, 2)])],
    8: [("llama", [(2, 2, 2)])],
}
"""By ranks: a family, and (tp, pp, dp) of the runs that go on one after the other."""


@pytest.fixture(scope="module")
def npus(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Ranks on simulated NPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, request.param, "hccl")


def by_step(record: Record, key: str, first: int) -> dict[int, float]:
    """Return the values of a key of the log from a step on."""
    return {each["step"]: each[key] for each in record.log if key in each and each["step"] >= first}


def compare(record: Record, unbroken: Record, first: int) -> None:
    """Assert that a run saw the losses and gradient norms of another from a step on."""
    for key in ("loss", "grad_norm"):
        wanted = by_step(unbroken, key, first)
        assert len(wanted) == 20 - first + 1
        assert by_step(record, key, first) == pytest.approx(wanted, rel=TOLERANCE), key


@pytest.mark.npu
@pytest.mark.parametrize("npus", [2, 4, 8], indirect=True)
def test_goes_on_at_every_layout_and_back_on_one_rank(npus: Ranks, tmp_path: Path) -> None:
    for family, layouts in LAYOUTS[npus.size]:
        one = Run(family, flags=SAVING)
        unbroken = train(one, tmp_path / "one")
        checkpoint = tmp_path / "one" / "checkpoint-10"
        for layout in layouts:
            folder = tmp_path / "x".join(map(str, layout))
            run = replace(one.at(*layout), resume=str(checkpoint))
            for record in npus.run(train_on_rank, run, folder, "hccl", timeout=250):
                compare(record, unbroken, first=11)
            back = replace(one, flags={"allow_layout_change": True}, resume=str(folder / "checkpoint-15"))
            compare(train(back, tmp_path / "back"), unbroken, first=16)
