"""Every schedule trains like one process: gradients, five optimizer steps, losses and norms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.conftest import Ranks
from tests.pipeline.models import Case, train_whole
from tests.pipeline.running import compare, train

SCHEDULES = ["gpipe", "1f1b", "zb-h1", "interleaved", "zb-v", "dualpipe-v"]


def run(ranks: Ranks, case: Case, **module: object) -> None:
    """Train a case on the ranks, all of them stages, and compare."""
    compare(ranks.run(train, case, ranks.backend, ranks.size, **module), train_whole(case), case)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_fp32(two: Ranks, schedule: str) -> None:
    run(two, Case(schedule))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tied_and_clipped(two: Ranks, schedule: str) -> None:
    """With SGD a wrong norm changes every step in proportion."""
    run(two, Case(schedule, tied=True, clip=0.3, optimizer="SGD"))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_four_stages(four: Ranks, schedule: str) -> None:
    run(four, Case(schedule, micro_batches=8, tied=True, clip=0.3, blocks=8))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-v"])
def test_recomputation(two: Ranks, schedule: str) -> None:
    run(two, Case(schedule, recomputation="full"))
    run(two, Case(schedule, recomputation=2, tied=True, clip=0.3))


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-v"])
def test_precision_and_zero(two: Ranks, schedule: str, precision: str, zero: int) -> None:
    run(two, Case(schedule, precision=precision, zero=zero, tied=True, clip=0.3, optimizer="SGD"))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shapes_that_change(two: Ranks, schedule: str) -> None:
    """Lengths differ between micro-batches and between steps, and the last micro-batch is smaller."""
    run(two, Case(schedule, changing=True))


def test_many_micro_batches(two: Ranks) -> None:
    for schedule in SCHEDULES:
        run(two, replace(Case(schedule), micro_batches=12, steps=2))
