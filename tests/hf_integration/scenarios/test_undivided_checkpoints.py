"""Checkpoints of runs that divide no model: which are written and kept, and what goes on from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import EarlyStoppingCallback, Trainer

from hf_integration.errors import TrainingInputError
from hf_integration.npu_trainer import NpuTrainer
from tests.hf_integration.divided import StopAt
from tests.hf_integration.scenarios.conftest import Rising
from tests.hf_integration.scenarios.undivided import BY_EPOCH, Classes, Line, Points, build, classifier


def frozen() -> Line:
    """A line whose height stays."""
    line = Line()
    line.height.requires_grad_(False)
    return line


@pytest.mark.parametrize("model", [Line, frozen, classifier], ids=lambda make: make.__name__)
def test_a_run_goes_on_from_its_checkpoint(model: Any, tmp_path: Path) -> None:
    """Also a model without a configuration, with parts frozen, and in the middle of an epoch."""
    case = {"model": model, "data": (lambda: Classes(22, seed=1)) if model is classifier else Points}
    flags = {"save_strategy": "steps", "save_steps": 3, "gradient_accumulation_steps": 2}
    whole = build(NpuTrainer, case, tmp_path / "whole", **flags)
    whole.train()
    stopped = build(NpuTrainer, case, tmp_path / "stopped", **flags)
    stopped.add_callback(StopAt(3))
    stopped.train(resume_from_checkpoint=False)
    resumed = build(NpuTrainer, case, tmp_path / "stopped", **flags)
    resumed.train(resume_from_checkpoint=True)
    assert [p.detach().tolist() for p in resumed.model.parameters()] == [
        p.detach().tolist() for p in whole.model.parameters()
    ]
    for entry, other in zip(resumed.state.log_history[:-1], whole.state.log_history[:-1], strict=True):
        assert entry.get("loss") == other.get("loss")


def test_the_state_of_callbacks_goes_on(tmp_path: Path) -> None:
    flags = {
        **BY_EPOCH,
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "restore_callback_states_from_checkpoint": True,
    }
    trainer = build(NpuTrainer, {}, tmp_path, **flags)
    trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=5, early_stopping_threshold=0.2))
    trainer.train()
    later = build(NpuTrainer, {}, tmp_path, **{**flags, "num_train_epochs": 3})
    later.add_callback(EarlyStoppingCallback())
    later.train(resume_from_checkpoint=True)
    kept = next(each for each in later.callback_handler.callbacks if isinstance(each, EarlyStoppingCallback))
    assert (kept.early_stopping_patience, kept.early_stopping_threshold) == (5, 0.2)


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    for wrong in (str(tmp_path / "checkpoint-7"), True):
        with pytest.raises(TrainingInputError, match="checkpoint"):
            build(NpuTrainer, {}, tmp_path).train(resume_from_checkpoint=wrong)


BY_STEP = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "rising"}
KEPT: dict[str, dict[str, Any]] = {
    "only when it is the best so far": {**BY_STEP, "save_strategy": "best", "load_best_model_at_end": True},
    "the last and the best": {
        **BY_STEP,
        "save_strategy": "steps",
        "save_steps": 1,
        "save_total_limit": 2,
        "load_best_model_at_end": True,
    },
    "one, which is the best": {**BY_STEP, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 1},
    "none of the step that was best": {**BY_STEP, "eval_steps": 3, "save_strategy": "steps", "save_steps": 2},
    "each epoch's": {**BY_EPOCH, "metric_for_best_model": "rising", "save_strategy": "epoch"},
}


@pytest.mark.parametrize("name", KEPT)
def test_checkpoints_are_kept_as_plain_trainer_keeps_them(name: str, tmp_path: Path) -> None:
    found = []
    for kind in (NpuTrainer, Trainer):
        folder = tmp_path / kind.__name__
        trainer = build(kind, {"options": {"compute_metrics": Rising()}}, folder, **KEPT[name])
        trainer.train()
        state = trainer.state
        best = state.best_model_checkpoint and Path(state.best_model_checkpoint).name
        left = sorted(path.name for path in folder.glob("checkpoint-*"))
        weights = [parameter.item() for parameter in trainer.model.parameters()]
        found.append([left, best, state.best_metric, state.best_global_step, weights])
    assert found[0] == found[1]
    assert found[0][0]
