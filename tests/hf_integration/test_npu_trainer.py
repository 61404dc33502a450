"""`NpuTrainer` at every layout against the plain Trainer in one process with the same global batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness.pool import RankPool
from tests.hf_integration.divided import STEPS, Record, Run, train, train_on_rank
from tests.pipeline.conftest import Ranks, kept

TOLERANCE = 1e-5
FAMILIES = ("llama", "qwen2", "gpt2")
LAYOUTS = {2: ((2, 1, 1), (1, 2, 1)), 4: ((2, 2, 1), (1, 2, 2)), 8: ((2, 2, 2),)}
"""(tp, pp, dp) by ranks."""
LONG = {("qwen2", (2, 2, 2)), ("gpt2", (2, 1, 1)), ("llama", (1, 2, 1))}
"""What runs to the end, with each kind of engine and each family; all else stops after the second epoch."""
SHORT = 6


def a_run(family: str) -> Run:
    """Return a run whose epochs end with half a step, for each replica."""
    return Run(family, rows=20)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """The plain Trainer in this process, by family."""
    return {family: train(a_run(family), tmp_path_factory.mktemp(family)) for family in FAMILIES}


@pytest.fixture(scope="module", params=[2, 4, 8])
def npus(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Ranks on simulated NPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, request.param, "hccl")


@pytest.fixture(scope="module")
def cpus(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on CPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "gloo")


def compare(records: list[Record], wanted: Record, steps: int) -> None:
    """Assert that every rank logged what one process did in its first steps."""
    for record in records:
        assert len(record.values("loss")) == steps
        for key in ("loss", "grad_norm"):
            assert record.values(key) == pytest.approx(wanted.values(key)[:steps], rel=TOLERANCE), key
        assert record.values("learning_rate") == pytest.approx(wanted.values("learning_rate")[:steps])
        assert record.values("epoch")[:steps] == pytest.approx(wanted.values("epoch")[:steps])


@pytest.mark.npu
@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_norms_on_npus(npus: Ranks, one: dict[str, Record], family: str, tmp_path: Path) -> None:
    for layout in LAYOUTS[npus.size]:
        steps = STEPS if (family, layout) in LONG else SHORT
        run = replace(a_run(family).at(*layout), stop_at=steps)
        folder = tmp_path / "".join(map(str, layout))
        compare(npus.run(train_on_rank, run, folder, "hccl", timeout=250), one[family], steps)


@pytest.mark.parametrize("layout", LAYOUTS[4])
def test_losses_and_norms_on_cpus(
    cpus: Ranks, one: dict[str, Record], layout: tuple[int, int, int], tmp_path: Path
) -> None:
    run = replace(a_run("llama").at(*layout), stop_at=SHORT)
    compare(cpus.run(train_on_rank, run, tmp_path, "gloo", timeout=250), one["llama"], SHORT)
