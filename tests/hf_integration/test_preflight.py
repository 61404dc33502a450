"""`preflight=True` of the training arguments: ranks that are alike train, one that is not is named by all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_integration.errors import TrainingInputError
from hf_integration.npu_arguments import NpuTrainingArguments
from hf_integration.preflight import argument_facts, data_facts
from npu_plugins.diagnostics.preflight import PreflightError, Report
from tests.harness.pool import RankPool
from tests.hf_integration.divided import Run, Sentences, train_on_rank
from tests.pipeline.conftest import Ranks, kept

RUN = Run(steps=2, layers=2, rows=24, flags={"preflight": True})


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on CPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "gloo")


@pytest.fixture(scope="module")
def four_npus(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on NPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "hccl")


def refused(run: Run, at_fault: int, other: Run, folder: Path) -> Report | str:
    """On a rank: the report with which it is refused, one rank having another run."""
    rank = torch.distributed.get_rank()
    try:
        train_on_rank(other if rank == at_fault else run, folder, "gloo")
    except PreflightError as error:
        return error.report
    return "It trained."


@pytest.mark.npu
def test_ranks_that_are_alike_train(four_npus: Ranks, tmp_path: Path) -> None:
    for layout in ((1, 1, 4), (2, 2, 1)):
        records = four_npus.run(train_on_rank, RUN.at(*layout), tmp_path, "hccl")
        assert all(len(record.values("loss")) == 2 for record in records)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"flags": {**RUN.flags, "seed": 7}}, "arguments: seed is 7 on rank 2 "),
        ({"flags": {**RUN.flags, "learning_rate": 1e-3}}, "arguments: learning_rate is 0.001 on rank 2 "),
        ({"rows": 20}, "data: the length of train_dataset is 20 on rank 2 "),
        ({"family": "qwen2"}, "model: tie_word_embeddings is True on rank 2 "),
    ],
    ids=["another seed", "another argument", "fewer rows", "another model"],
)
def test_a_rank_that_differs_is_named(
    four: Ranks, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    run = RUN.at(2, 1, 2)
    reports = four.run(refused, run, 2, replace(run, **changes), tmp_path)
    assert isinstance(reports[0], Report) and all(report == reports[0] for report in reports)
    assert [finding.ranks for finding in reports[0].errors] == [(2,)] * len(reports[0].errors)
    told = [finding.what for finding in reports[0].errors]
    assert any(what.startswith(named) for what in told), told


def drawn_on_one_rank(folder: Path) -> Report | str:
    """On a rank: as `refused`, one rank having drawn a random number while its trainer was made."""
    run = replace(RUN, trainer={"callbacks": [Draws] if torch.distributed.get_rank() == 1 else []})
    return refused(run.at(1, 1, 4), -1, run, folder)


class Draws:
    """A callback whose making draws a number."""

    def __new__(cls) -> Any:
        from transformers import TrainerCallback

        random.random()
        return TrainerCallback()


def test_random_numbers_that_start_elsewhere(four: Ranks, tmp_path: Path) -> None:
    reports = four.run(drawn_on_one_rank, tmp_path)
    assert all(report == reports[0] for report in reports)
    (finding,) = reports[0].findings
    assert finding.ranks == (1,)
    assert finding.what.startswith("seeds: the state of random's generator is ")


def test_arguments_that_one_rank_may_have_otherwise() -> None:
    first = {
        "seed": 1,
        "output_dir": "a",
        "disable_tqdm": False,
        "report_to": ["tensorboard"],
        "deepspeed": "x.json",
    }
    facts = argument_facts(first, {"zero_optimization": {"stage": 1}})
    assert {(fact.kind, fact.name): fact.level for fact in facts} == {
        ("arguments", "seed"): "error",
        ("arguments", "output_dir"): "warning",
        ("ds_config", "zero_optimization.stage"): "error",
    }


def test_data_is_read_only_where_that_draws_nothing() -> None:
    def values(data: Any, rows: bool) -> list[str]:
        return [fact.value for fact in data_facts("train_dataset", data, rows)]

    assert values(Sentences(5, seed=1), rows=False) == ["5"]
    assert values(Sentences(5, seed=1), rows=True) == values(Sentences(5, seed=1), rows=True)
    assert values(Sentences(5, seed=1), rows=True) != values(Sentences(5, seed=2), rows=True)
    assert values(iter([1]), rows=True) == [], "what knows no length cannot be compared"
    assert values([], rows=True) == ["0"]


def test_one_process_and_a_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    NpuTrainingArguments(output_dir=str(tmp_path), use_cpu=True, preflight=True, report_to="none")
    told = capsys.readouterr().err
    assert "preflight: 1 rank on 1 host, tp 1 × dp 1 × pp 1, gloo" in told and told.rstrip().endswith("ready")
    with pytest.raises(TrainingInputError, match="--preflight needs the ranks of a job"):
        NpuTrainingArguments(output_dir=str(tmp_path), dry_run=True, preflight=True, report_to="none")
