"""The throughput model against published speeds, as ``benchmarks/planner_accuracy.py`` compares them."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ds_configs.throughput import load_efficiency

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "planner_accuracy.py"


@pytest.fixture(scope="module")
def benchmark_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("planner_accuracy", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


def test_ascend_rows_are_within_the_goals(benchmark_module: ModuleType) -> None:
    """Median at most 10 %, worst at most 25 %, on the rows that are not legacy."""
    rows = benchmark_module.ascend_rows(benchmark_module.ASCEND_ROWS)
    errors = [
        abs(benchmark_module.predict(row, load_efficiency("npu")).error) for row in rows if not row.legacy
    ]
    assert len(errors) == 11
    assert statistics.median(errors) <= 0.10
    assert max(errors) <= 0.25


def test_the_stored_constants_are_what_the_rows_give(benchmark_module: ModuleType) -> None:
    stored = load_efficiency("npu")
    rows = [row for row in benchmark_module.ascend_rows(benchmark_module.ASCEND_ROWS) if not row.legacy]
    fitted = benchmark_module.fit(rows, stored)
    for name in benchmark_module.FITTED:
        assert getattr(stored, name) == pytest.approx(getattr(fitted, name), rel=0.02)


def test_rows_that_the_constants_have_not_seen_are_within_the_goals(benchmark_module: ModuleType) -> None:
    rows = [row for row in benchmark_module.ascend_rows(benchmark_module.ASCEND_ROWS) if not row.legacy]
    errors = benchmark_module.leave_one_out(rows, load_efficiency("npu"))
    assert statistics.median(errors) <= 0.10
    assert max(errors) <= 0.25


def test_narayanan_2021_table_1(benchmark_module: ModuleType) -> None:
    """Mean error at most 15 %, from 1.7 to 1008 billion parameters on 32 to 3072 A100."""
    rows = benchmark_module.narayanan_rows(load_efficiency("gpu"))
    assert len(rows) == 10
    assert statistics.mean(abs(guess / real - 1) for _, real, guess, _, _ in rows) <= 0.15


def test_memory_forces_recomputation_only_where_a_card_would_overflow(benchmark_module: ModuleType) -> None:
    rows = benchmark_module.ascend_rows(benchmark_module.ASCEND_ROWS)
    assert all(row.recomputed == 0 for row in rows)
    crowded = replace(rows[0].job, micro_batch=4)
    assert 0 < benchmark_module.forced_recomputation(crowded) <= 1
