"""Every schedule trains like one process: gradients, five optimizer steps, losses and norms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.pool import RankPool
from tests.pipeline.conftest import Ranks, kept
from tests.pipeline.models import Case, train_whole
from tests.pipeline.running import compare, train

SCHEDULES = ["gpipe", "1f1b", "zb-h1", "interleaved", "zb-v", "dualpipe-v"]
SPLIT = ["1f1b", "zb-h1", "zb-v"]  # one without split backwards, one with, one with two chunks


def run(ranks: Ranks, case: Case, stages: int | None = None) -> None:
    """Train a case on the ranks, by default all of them stages, and compare."""
    stages = stages or ranks.size
    compare(ranks.run(train, case, ranks.backend, stages), train_whole(case, ranks.size // stages), case)


@pytest.fixture(scope="module")
def two_npus(rank_pool: RankPool) -> Iterator[Ranks]:
    """Two ranks on NPUs."""
    yield from kept(rank_pool, 2, "hccl")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_fp32(two: Ranks, schedule: str) -> None:
    run(two, Case(schedule))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tied_and_clipped(two_cpus: Ranks, schedule: str) -> None:
    """With SGD a wrong norm changes every step in proportion."""
    run(two_cpus, Case(schedule, tied=True, clip=0.3, optimizer="SGD"))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_four_stages(four: Ranks, schedule: str) -> None:
    run(four, Case(schedule, micro_batches=8, tied=True, clip=0.3, blocks=8, steps=3))


@pytest.mark.parametrize("schedule", SPLIT)
def test_two_stages_and_two_replicas(four: Ranks, schedule: str) -> None:
    run(four, Case(schedule, tied=True, clip=0.3, optimizer="SGD", steps=3), stages=2)
    run(four, Case(schedule, tied=True, clip=0.3, zero=1, steps=3), stages=2)


@pytest.mark.parametrize("schedule", SPLIT)
def test_recomputation(two_cpus: Ranks, schedule: str) -> None:
    run(two_cpus, Case(schedule, recomputation="full"))
    run(two_cpus, Case(schedule, recomputation=2, tied=True, clip=0.3))


@pytest.mark.parametrize(
    ("precision", "zero"), [("fp32", 1), ("bf16", 0), ("bf16", 1), ("fp16", 0), ("fp16", 1)]
)
@pytest.mark.parametrize("schedule", SPLIT)
def test_precision_and_zero(two_npus: Ranks, schedule: str, precision: str, zero: int) -> None:
    """Also bf16 with fp32 accumulation, which loses deferred weight gradients if it is not told."""
    run(two_npus, Case(schedule, precision=precision, zero=zero, tied=True, clip=0.3, optimizer="SGD"))


@pytest.mark.parametrize("schedule", SPLIT)
def test_optimizer_on_the_host(two_npus: Ranks, schedule: str) -> None:
    offload = {"stage": 1, "offload_optimizer": {"device": "cpu"}}
    extra = (("zero_optimization", offload), ("zero_force_ds_cpu_optimizer", False))
    run(two_npus, Case(schedule, zero=1, clip=0.3, extra=extra))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shapes_that_change(two: Ranks, schedule: str) -> None:
    """Lengths differ between micro-batches and between steps, and the last micro-batch is smaller."""
    run(two, Case(schedule, changing=True, steps=3))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_many_micro_batches(two_cpus: Ranks, schedule: str) -> None:
    run(two_cpus, Case(schedule, micro_batches=12, steps=2))


def test_three_chunks(two_cpus: Ranks) -> None:
    run(two_cpus, Case("interleaved", virtual_stages=3, blocks=7, steps=2))
