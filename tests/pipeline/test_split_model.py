"""Hugging Face decoders split into stages train like the whole model in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.pool import RankPool
from tests.pipeline import split_cases as cases
from tests.pipeline.conftest import Ranks, kept
from tests.pipeline.hf_models import FAMILIES, MODULES, RATE, Split
from tests.pipeline.models import Case
from tests.pipeline.running import compare

SCHEDULES = ["1f1b", "zb-v", "zb-h1"]
BATCHES = ("plain", "padded", "packed", "both")


def run(ranks: Ranks, splits: list[Split], stages: int | None = None) -> None:
    """Train cases on the ranks, by default all of them stages, and compare each with one process."""
    stages = stages or ranks.size
    results = ranks.run(cases.train_all, splits, ranks.backend, stages, timeout=120)
    for split, result in zip(splits, zip(*results, strict=True), strict=True):
        (whole,) = [each for _, each in result if each is not None]
        shape = Case(precision=split.precision, steps=split.steps)
        try:
            compare([record for record, _ in result], whole, shape, way=split.steps * RATE)
        except AssertionError as error:
            raise AssertionError(f"{split}: {error}") from error


@pytest.fixture(scope="module", autouse=True)
def imported(rank_pool: RankPool) -> None:
    """The models' modules, imported once for all ranks."""
    rank_pool.preload("deepspeed", *MODULES)


@pytest.fixture(scope="module")
def two_npus(rank_pool: RankPool) -> Iterator[Ranks]:
    """Two ranks on NPUs."""
    yield from kept(rank_pool, 2, "hccl")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_stages(two_cpus: Ranks, schedule: str) -> None:
    """Tied and untied, with masks, positions and windows, sdpa."""
    numbered = list(enumerate(FAMILIES))
    run(two_cpus, [Split(name, number % 2 == 0, schedule, BATCHES[number % 4]) for number, name in numbered])


def test_four_stages(four: Ranks) -> None:
    """Untied and tied, other batches, eager; each family under one of the schedules."""
    run(
        four,
        [
            Split(name, number % 2 == 1, SCHEDULES[number % 3], BATCHES[(number + 1) % 4], "eager", layers=6)
            for number, name in enumerate(FAMILIES)
        ],
    )


def test_on_npus(two_npus: Ranks) -> None:
    run(
        two_npus,
        [
            Split(name, number % 2 == 0, SCHEDULES[(number + 1) % 3], BATCHES[(number + 2) % 4], steps=2)
            for number, name in enumerate(FAMILIES)
        ],
    )


def test_bf16(two_npus: Ranks) -> None:
    """Large weights make bf16 itself miss the bound: the whole model's gradients are 3 % off at 0.2."""
    small = (("initializer_range", 0.05),)
    run(
        two_npus,
        [Split("llama", True, "zb-h1", "padded", precision="bf16", layers=2, changes=small)],
    )
    two_npus.run(cases.rotary_stays_exact, two_npus.backend)


def test_uneven_stages(two_cpus: Ranks, four: Ranks) -> None:
    run(two_cpus, [Split("gpt2", True, partition=(1, 7)), Split("gemma", True, partition=(6, 1))])
    run(four, [Split("mistral", True, "zb-h1", partition=(1, 1, 3, 2))])


def test_the_mean_over_tokens(four: Ranks) -> None:
    """`num_items_in_batch` counts the label tokens of all micro-batches and replicas."""
    run(four, [Split("llama", True, schedule, "counted") for schedule in SCHEDULES], stages=2)


def test_recomputation(two_cpus: Ranks) -> None:
    blocks = [(schedule, how) for schedule in SCHEDULES for how in ("full", 2)]
    run(two_cpus, [Split("phi3", True, schedule, "padded", recomputation=how) for schedule, how in blocks])
    two_cpus.run(cases.dropout, two_cpus.backend)
    two_cpus.run(cases.checkpointed_model, two_cpus.backend)


def test_frozen_parameters(two_cpus: Ranks) -> None:
    run(two_cpus, [Split("llama", schedule=schedule, frozen=True) for schedule in SCHEDULES])


def test_rotary_tables_that_depend_on_the_length(two_cpus: Ranks) -> None:
    """Those of the dynamic kind remember the longest sequence so far, at each stage in the same order."""
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0}
    long = {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "original_max_position_embeddings": 10,
        "short_factor": [1.0, 1.5, 2.0, 3.0],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
    }
    changes = {
        "llama": (("rope_parameters", dynamic), ("max_position_embeddings", 8)),
        "phi3": (("rope_parameters", long), ("max_position_embeddings", 20)),
    }
    run(
        two_cpus,
        [
            Split(name, False, schedule, "varied", recomputation="full", changes=change)
            for name, change in changes.items()
            for schedule in ("zb-v", "zb-h1")
        ],
    )


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
def test_evaluation(two_cpus: Ranks, schedule: str) -> None:
    two_cpus.run(cases.evaluate, two_cpus.backend, schedule)


def test_refusals(two_cpus: Ranks) -> None:
    two_cpus.run(cases.refusals, two_cpus.backend)


def test_measured_cut(two_cpus: Ranks) -> None:
    two_cpus.run(cases.measured_cut, two_cpus.backend)
