"""The checks where DeepSpeed's own engine trains an undivided model, which steps within the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.pool import RankPool
from tests.hf_integration.divided import Run, train_on_rank
from tests.hf_integration.scenarios.conftest import small
from tests.hf_integration.scenarios.test_checks import NORM, PROJECTION, Flip, Poison, checked
from tests.pipeline.conftest import Ranks, kept


@pytest.fixture(scope="module")
def two_npus(rank_pool: RankPool) -> Iterator[Ranks]:
    """Two ranks on NPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 2, "hccl")


def told(ranks: Ranks, folder: Path, stage: int, fault: Any = None, **flags: Any) -> str:
    """Train with ZeRO and return what ends it, the same on both ranks."""
    config = {"zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": "auto"}
    config |= {"gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}}
    config |= {"fp16": {"enabled": "auto", "initial_scale_power": 24}}  # at which the first steps overflow
    run: Run = checked(small(flags={"deepspeed": config, **flags}), fault).at(1, 1, 2)
    records = ranks.run(train_on_rank, run, folder, "hccl", timeout=250)
    (text,) = {record.after for record in records}
    return text


@pytest.mark.parametrize(("stage", "dtype"), [(0, "bf16"), (0, "fp16"), (1, "bf16"), (2, "fp16")])
def test_clean_runs_pass(two_npus: Ranks, tmp_path: Path, stage: int, dtype: str) -> None:
    assert told(two_npus, tmp_path, stage, **{dtype: True}) == ""
    assert (tmp_path / "checks" / "gradients.jsonl").exists() == (stage == 0)


def test_a_flipped_gradient_is_named_before_it_is_clipped(two_npus: Ranks, tmp_path: Path) -> None:
    text = told(two_npus, tmp_path, 0, Flip(1, NORM, "gradient"))
    assert text.startswith("InconsistentRanksError: gradients at step 2 differ between ranks\n" + NORM)
    assert "bit 13 alone; 1 of 32 differ" in text
    assert "further" not in text


@pytest.mark.parametrize("stage", [2, 3])
def test_nan_is_named(two_npus: Ranks, tmp_path: Path, stage: int) -> None:
    flags = {"check_gradients": None} if stage == 3 else {}
    text = told(two_npus, tmp_path, stage, Poison(1, PROJECTION), **flags)
    assert f"came up on rank 1 in the forward of {PROJECTION}, whose inputs" in text


def test_nothing_can_be_compared_under_zero_3(two_npus: Ranks, tmp_path: Path) -> None:
    text = told(two_npus, tmp_path, 3)
    assert "No two ranks hold parameters that must be the same (ZeRO has divided them)" in text
