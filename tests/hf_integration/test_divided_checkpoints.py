"""What a divided model leaves on the disk: a plain Hugging Face directory, and checkpoints to go on from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, EarlyStoppingCallback

from tests.harness.outcome import RankFailure
from tests.harness.pool import RankPool
from tests.hf_integration.divided import Run, Sentences, train_on_rank
from tests.pipeline.conftest import Ranks, kept

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on simulated NPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "hccl")


def save_and_evaluate(trainer: Any) -> dict[str, Any]:
    """Save the model and evaluate it."""
    folder = Path(trainer.args.output_dir) / "model"
    trainer.save_model(str(folder))
    return {"folder": folder, **trainer.evaluate()}


def evaluate_alone(folder: Path) -> float:
    """Return the evaluation loss of a saved model, loaded as any user would, by the plain Trainer."""
    from hf_integration.npu_trainer import NpuTrainer

    model = AutoModelForCausalLM.from_pretrained(folder)
    arguments = Run().arguments(folder / "again", use_cpu=True)
    trainer = NpuTrainer(model=model, args=arguments, eval_dataset=Sentences(11, seed=2))
    return trainer.evaluate()["eval_loss"]


@pytest.mark.npu
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_saved_model_evaluates_to_the_loss_of_the_run(four: Ranks, family: str, tmp_path: Path) -> None:
    run = Run(family, steps=2, after=save_and_evaluate).at(2, 2, 1)
    after = four.run(train_on_rank, run, tmp_path, "hccl", timeout=200)[0].after
    assert evaluate_alone(after["folder"]) == pytest.approx(after["eval_loss"], rel=TOLERANCE)


@pytest.mark.npu
def test_other_layout_is_refused_without_its_flag(four: Ranks, tmp_path: Path) -> None:
    first = replace(Run(flags={"save_strategy": "steps", "save_steps": 1}).at(2, 1, 2), stop_at=1)
    four.run(train_on_rank, first, tmp_path, "hccl", timeout=200)
    run = replace(Run().at(1, 2, 2), resume=str(tmp_path / "checkpoint-1"))
    with pytest.raises(RankFailure, match="was saved at tp 2 × pp 1 × dp 2 .* --allow_layout_change"):
        four.run(train_on_rank, run, tmp_path, "hccl", timeout=200)


@pytest.mark.npu
@pytest.mark.parametrize("layout", [(2, 2, 1)], ids=str)
def test_best_model_is_kept_and_training_stops_early(four: Ranks, layout: Any, tmp_path: Path) -> None:
    """With this rate the loss of unseen text rises from the start on."""
    flags = {
        "save_strategy": "steps",
        "eval_strategy": "steps",
        "save_steps": 2,
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "learning_rate": 3e-2,
        "save_total_limit": 1,
    }
    run = Run(
        layers=2,
        flags=flags,
        trainer={"callbacks": [EarlyStoppingCallback(early_stopping_patience=2)]},
        after=save_and_evaluate,
    ).at(*layout)
    record = four.run(train_on_rank, run, tmp_path, "hccl", timeout=250)[0]
    evaluated = record.values("eval_loss")
    assert len(record.values("loss")) < run.steps
    assert record.after["eval_loss"] == pytest.approx(min(evaluated), rel=TOLERANCE)
    assert min(evaluated) < evaluated[-2] - 1e-3  # the last training state was another
    assert torch.isfinite(torch.tensor(evaluated)).all()
