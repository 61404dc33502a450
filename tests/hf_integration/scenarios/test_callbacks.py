"""Callbacks: the order of events, what stops a run, and training again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import EarlyStoppingCallback, TrainerCallback

from tests.hf_integration.comparing import same_log
from tests.hf_integration.divided import Run, train
from tests.hf_integration.scenarios.conftest import Rising, Trained, small

EVENTS = (
    "init_end",
    "train_begin",
    "train_end",
    "epoch_begin",
    "epoch_end",
    "step_begin",
    "pre_optimizer_step",
    "optimizer_step",
    "substep_end",
    "step_end",
    "evaluate",
    "predict",
    "save",
    "log",
    "prediction_step",
)
GIVEN = ("lr_scheduler", "model", "optimizer")


class Recorder(TrainerCallback):
    """Writes down every event and what the Trainer says of itself in it."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        for name in EVENTS:
            setattr(self, f"on_{name}", self._noting(name))

    def _noting(self, name: str) -> Any:
        def note(args: Any, state: Any, control: Any, **things: Any) -> None:
            given = [key for key in GIVEN if things.get(key) is not None]
            flags = [control.should_log, control.should_evaluate, control.should_save]
            self.events.append([name, state.global_step, given, flags])

        return note


def events(trainer: Any) -> list[Any]:
    """What the recorder wrote down; a prediction, too."""
    trainer.predict(trainer.eval_dataset)
    found = next(each for each in trainer.callback_handler.callbacks if isinstance(each, Recorder))
    return found.events


EVERYTHING = {
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "save_strategy": "steps",
    "save_steps": 4,
    "per_device_eval_batch_size": 16,  # one batch of evaluation, on however many replicas
}


def recording(run: Run, flags: dict[str, Any]) -> Run:
    """Return the run with a new recorder of its own."""
    return replace(run, steps=-1, flags=flags, trainer={"callbacks": [Recorder()]}, after=events)


def test_events_come_in_the_order_of_the_trainer(on_four: Trained, tmp_path: Path) -> None:
    """Two replicas have half as many batches in a step, so that there are fewer of its parts."""
    flags = {**EVERYTHING, "num_train_epochs": 2.5}
    wanted = train(recording(small(rows=8), flags), tmp_path / "one")
    records = on_four(recording(small(rows=16, micro_batches=4), flags).at(1, 2, 2))
    assert records[0].after == wanted.after
    assert [entry[0] for entry in wanted.after].count("save") == 2
    for record in records[1:]:
        assert record.after == records[0].after


def last(trainer: Any) -> Any:
    """Where training ended, and what the model that is left is worth."""
    best = Path(trainer.state.best_model_checkpoint).name
    return [trainer.state.global_step, best, trainer.state.best_metric, trainer.evaluate()["eval_loss"]]


def stopping(run: Run) -> Run:
    """Return the run with a metric and a callback of its own."""
    callbacks = [EarlyStoppingCallback(early_stopping_patience=2)]
    return replace(run, trainer={"callbacks": callbacks, "compute_metrics": Rising()})


@pytest.mark.parametrize("layout", [(2, 2, 1), (2, 1, 2)], ids=str)
def test_early_stopping_leaves_the_best_model(
    on_four: Trained, layout: tuple[int, int, int], tmp_path: Path
) -> None:
    flags = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "steps",
        "save_steps": 1,
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "rising",
    }
    run = small(steps=12, flags=flags, after=last)
    wanted = train(stopping(run), tmp_path / "one")
    assert wanted.after[:3] == [4, "checkpoint-2", 3.0]
    same_log(on_four(stopping(run).at(*layout)), wanted)


def again(trainer: Any) -> list[Any]:
    """Train once more, with what the first training has left behind."""
    trainer.train()
    return [[entry["loss"], entry["learning_rate"]] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("layout", [(2, 2, 1), (2, 1, 2)], ids=str)
def test_training_twice(on_four: Trained, layout: tuple[int, int, int], tmp_path: Path) -> None:
    run = small(steps=2, after=again)
    same_log(on_four(run.at(*layout)), train(run, tmp_path / "one"))
