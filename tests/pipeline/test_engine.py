"""The engine beyond plain training: evaluation, structures, failures, data, dropout, traces and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline import engine_cases as cases
from tests.pipeline.conftest import Ranks

SCHEDULES = ["1f1b", "zb-h1", "zb-v"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_dicts_and_several_losses(two: Ranks, schedule: str) -> None:
    two.run(cases.train_dicts, two.backend, schedule)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-v"])
def test_evaluation(two: Ranks, schedule: str) -> None:
    two.run(cases.evaluate, two.backend, schedule)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_dropout_under_recomputation(two: Ranks, schedule: str) -> None:
    two.run(cases.dropout, two.backend, schedule)


def test_seeded_layers(two_cpus: Ranks) -> None:
    two_cpus.run(cases.seeded_layers, two_cpus.backend)


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("where", [0, 1], ids=["first", "last"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stage_that_raises(two: Ranks, schedule: str, where: int, when: str) -> None:
    two.run(cases.a_stage_fails, two.backend, schedule, where, when)


def test_data_that_ends(two: Ranks) -> None:
    two.run(cases.data_ends, two.backend)


def test_trace(two: Ranks, tmp_path: Path) -> None:
    two.run(cases.trace, two.backend, str(tmp_path))


def test_stock_modules(two_cpus: Ranks) -> None:
    two_cpus.run(cases.stock_modules_keep_the_stock_engine)


def test_refusals(two_cpus: Ranks) -> None:
    two_cpus.run(cases.refusals, two_cpus.backend)


def test_measured_cut(two_cpus: Ranks) -> None:
    two_cpus.run(cases.measured_cut, two_cpus.backend)


def test_numbers_that_change(two_cpus: Ranks) -> None:
    two_cpus.run(cases.numbers_that_change, two_cpus.backend)
