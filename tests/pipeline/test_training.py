"""Every schedule trains like one process: gradients, five optimizer steps, losses and norms."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import pytest

from tests.pipeline.conftest import Ranks
from tests.pipeline.models import Case, Record, train_whole
from tests.pipeline.running import compare, train

SCHEDULES = ["gpipe", "1f1b", "zb-h1", "interleaved", "zb-v", "dualpipe-v"]
SPLIT = ["1f1b", "zb-h1", "zb-v"]  # one without split backwards, one with, one with two chunks


class Row(NamedTuple):
    """What one run of the grid has; which schedule is another dimension of it."""

    ranks: int
    micro_batches: str
    """The fewest that the schedule takes (4 or more), 12 or near, or, where that can be, no multiple of p."""
    tied: bool
    clip: bool
    zero: int
    recomputation: str | int
    precision: str

    def case(self, schedule: str) -> Case:
        """Return the run; v is 2 for interleaved, zb-v and dualpipe-v, else 1. Five steps of AdamW."""
        fewest = {"dualpipe-v": 2 * self.ranks}.get(schedule, 4)
        odd = fewest + (2 if schedule == "interleaved" else 1) * (1 if self.ranks == 2 else 3)
        odd = 8 if schedule == "interleaved" and self.ranks == 4 else odd
        return Case(
            schedule,
            {"fewest": fewest, "many": 12, "odd": odd}[self.micro_batches],
            tied=self.tied,
            clip=0.3 if self.clip else 0.0,
            zero=self.zero,
            recomputation=self.recomputation,
            precision=self.precision,
        )


GRID = [
    Row(2, "odd", False, False, 0, "full", "fp32"),
    Row(2, "odd", True, True, 0, 2, "bf16"),
    Row(2, "fewest", True, False, 0, "none", "bf16"),
    Row(2, "many", True, True, 1, "none", "bf16"),
    Row(2, "many", False, False, 1, "full", "bf16"),
    Row(4, "odd", False, True, 1, "none", "fp32"),
    Row(4, "fewest", True, True, 0, "full", "fp32"),
    Row(4, "fewest", False, False, 1, 2, "bf16"),
    Row(4, "many", True, True, 0, 2, "fp32"),
]
"""Every value of each column together with every value of each other column."""


def test_the_grid_has_every_pair_of_values() -> None:
    for one, other in combinations(range(len(Row._fields)), 2):
        values = [{row[column] for row in GRID} for column in (one, other)]
        found = {(row[one], row[other]) for row in GRID}
        assert found == {(a, b) for a in values[0] for b in values[1]}, (Row._fields[one], Row._fields[other])


@cache
def whole(case: Case, replicas: int) -> Record:
    """Train in one process; cases that differ in what only a pipeline knows share it."""
    return train_whole(case, replicas)


def run(ranks: Ranks, case: Case, stages: int | None = None) -> None:
    """Train a case on the ranks, by default all of them stages, and compare."""
    stages = stages or ranks.size
    pipelines_own = {"schedule": "", "virtual_stages": None, "zero": 0, "recomputation": "", "extra": ()}
    alone = replace(case, precision="fp32", **pipelines_own)
    compare(ranks.run(train, case, ranks.backend, stages), whole(alone, ranks.size // stages), case)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("row", GRID, ids=lambda row: "-".join(map(str, row)))
def test_grid(request: pytest.FixtureRequest, row: Row, schedule: str) -> None:
    ranks: Any = request.getfixturevalue({2: "two_cpus", 4: "four"}[row.ranks])
    run(ranks, row.case(schedule))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_npus(two_npus: Ranks, schedule: str) -> None:
    run(two_npus, Case(schedule))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tied_and_clipped(two_cpus: Ranks, schedule: str) -> None:
    """With SGD a wrong norm changes every step in proportion."""
    run(two_cpus, Case(schedule, tied=True, clip=0.3, optimizer="SGD"))


@pytest.mark.parametrize("schedule", SPLIT)
def test_two_stages_and_two_replicas(four: Ranks, schedule: str) -> None:
    run(four, Case(schedule, tied=True, clip=0.3, optimizer="SGD", steps=3), stages=2)
    run(four, Case(schedule, tied=True, clip=0.3, zero=1, steps=3), stages=2)


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


def test_three_chunks(two_cpus: Ranks) -> None:
    run(two_cpus, Case("interleaved", virtual_stages=3, blocks=7, steps=2))
