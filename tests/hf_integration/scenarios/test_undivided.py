"""Without degrees `NpuTrainer` does what Trainer does, with whatever model and data that takes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback
from transformers.testing_utils import CaptureLogger
from transformers.utils import logging

from hf_integration.npu_trainer import NpuTrainer
from tests.hf_integration.comparing import same
from tests.hf_integration.divided import Sentences, make_model
from tests.hf_integration.scenarios.undivided import BY_EPOCH, Classes, Line, Points, build, classifier


class Loaders:
    """Two loaders one after the other, without a data set to ask."""

    def __init__(self, *loaders: Any) -> None:
        self.loaders = loaders

    def __len__(self) -> int:
        return sum(map(len, self.loaders))

    def __iter__(self) -> Iterator[Any]:
        for loader in self.loaders:
            yield from loader


def twice(base: Any) -> type:
    """Return a Trainer that reads its data twice in an epoch."""

    def get_train_dataloader(self: Any) -> Any:
        return Loaders(base.get_train_dataloader(self), base.get_train_dataloader(self))

    def get_eval_dataloader(self: Any, eval_dataset: Any = None) -> Any:
        return Loaders(*(base.get_eval_dataloader(self, eval_dataset) for _ in range(2)))

    return type("Twice", (base,), locals())


def plain_sgd(options: dict[str, Any]) -> dict[str, Any]:
    optimizer = torch.optim.SGD(options["model"].parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.2, patience=0)
    return {"optimizers": (optimizer, schedule)}


class TooLarge(TrainerCallback):
    """Lacks memory for batches of more than two rows."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.train_batch_size > 2:
            raise RuntimeError("CUDA out of memory.")  # by which accelerate knows it on any device


CASES: dict[str, dict[str, Any]] = {
    "a model without a configuration": {"flags": BY_EPOCH},
    "two outputs and two columns of labels": {
        "model": lambda: Line(outputs=2),
        "data": lambda: Points(columns=2),
        "flags": {"label_names": ["labels", "labels_2"]},
    },
    "a dict, gathered as objects": {
        "model": lambda: Line(as_dict=True),
        "flags": {"eval_use_gather_object": True},
    },
    "loaders without a data set": {"wrap": twice},
    "a model made anew for each training": {"options": {"model": None, "model_init": lambda: Line()}},
    "an optimizer and a scheduler": {
        "more": plain_sgd,
        "flags": {**BY_EPOCH, "metric_for_best_model": "eval_loss"},
    },
    "a batch that is found": {
        "flags": {"auto_find_batch_size": True},
        "more": lambda options: {"callbacks": [TooLarge()]},
    },
    "classification": {"model": classifier, "data": lambda: Classes(11, seed=1), "flags": BY_EPOCH},
    "noise on embeddings, by steps": {
        "model": lambda: make_model("llama"),
        "data": lambda: Sentences(8, seed=1),
        "flags": {"neftune_noise_alpha": 0.4, "gradient_checkpointing": True, "label_smoothing_factor": 0.1},
    },
}


def shown(trainer: Any) -> list[Any]:
    """Train, evaluate, predict, and train again."""
    before = copy.deepcopy(trainer.args.to_dict())
    trainer.train()
    wrapped = trainer.model_wrapped
    metrics = trainer.evaluate()
    prediction = trainer.predict(trainer.eval_dataset)
    arrays = prediction.predictions if isinstance(prediction.predictions, tuple) else [prediction.predictions]
    found = [trainer.state.log_history, metrics, [array.tolist() for array in arrays]]
    trainer.train()
    changed = [key for key, value in trainer.args.to_dict().items() if value != before[key]]
    return [*found, trainer.state.log_history[-1], changed, trainer.model_wrapped is wrapped]


def untimed(found: list[Any]) -> list[Any]:
    """Leave out what `NpuTrainer` logs besides."""
    history = [
        {key: value for key, value in entry.items() if "memory_mib" not in key and "tokens_per_s" not in key}
        for entry in found[0]
    ]
    return [history, *found[1:]]


@pytest.mark.parametrize("name", CASES)
def test_all_that_plain_trainer_takes(name: str, tmp_path: Path) -> None:
    found = untimed(shown(build(NpuTrainer, CASES[name], tmp_path / "npu")))
    same(found, shown(build(Trainer, CASES[name], tmp_path / "plain")))


def test_plain_arguments_serve_as_well(tmp_path: Path) -> None:
    wanted = build(Trainer, {}, tmp_path)
    trainer = NpuTrainer(Line(), wanted.args, train_dataset=Points(), eval_dataset=Points())
    same(untimed(shown(trainer)), shown(wanted))


def test_special_tokens_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    """As the Trainer aligns them when training begins."""
    from hf_integration.byte_tokenizer import build_byte_tokenizer

    tokenizer = build_byte_tokenizer()
    model = make_model("llama")
    model.resize_token_embeddings(len(tokenizer))
    case = {"model": lambda: model, "data": lambda: Sentences(4, seed=1)}
    trainer = build(NpuTrainer, {**case, "options": {"processing_class": tokenizer}}, tmp_path, max_steps=1)
    trainer.train()
    for name in ("eos_token_id", "pad_token_id"):
        assert getattr(trainer.model.config, name) == getattr(tokenizer, name)


@pytest.mark.parametrize(("level", "told"), [("info", True), ("error", False)])
def test_the_level_of_the_log(level: str, told: bool, tmp_path: Path) -> None:
    before = logging.get_verbosity()
    try:
        with CaptureLogger(logging.get_logger()) as captured:
            build(NpuTrainer, {}, tmp_path, log_level=level, max_steps=1).train()
    finally:
        logging.set_verbosity(before)
    assert ("Running training" in captured.out) == told
