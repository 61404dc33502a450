"""Without degrees `NpuTrainer` does what Trainer does, with whatever model and data that takes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from hf_integration.errors import TrainingInputError
from hf_integration.npu_arguments import NpuTrainingArguments
from hf_integration.npu_trainer import NpuTrainer
from tests.hf_integration.comparing import same
from tests.hf_integration.divided import Sentences, StopAt, make_model


class Points(Dataset):
    """Points about a line, with as many columns of results as wanted."""

    def __init__(self, count: int = 22, columns: int = 1) -> None:
        generator = torch.Generator().manual_seed(4)
        self.x = torch.randn(count, generator=generator)
        self.y = [2 * self.x + 3 + 0.1 * torch.randn(count, generator=generator) for _ in range(columns)]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        names = ["labels", *(f"labels_{column}" for column in range(2, len(self.y) + 1))]
        return {"x": self.x[index], **{name: y[index] for name, y in zip(names, self.y, strict=True)}}


class Line(nn.Module):
    """A line, which no configuration describes and which knows nothing of counts of items."""

    def __init__(self, outputs: int = 1, as_dict: bool = False) -> None:
        super().__init__()
        self.slope, self.height = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(0.0))
        self.outputs, self.as_dict = outputs, as_dict

    def forward(self, x: Any, labels: Any = None, labels_2: Any = None) -> Any:
        y = self.slope * x + self.height
        loss = None if labels is None else nn.functional.mse_loss(y, labels)
        if self.as_dict:
            return {"y": y} if loss is None else {"loss": loss, "y": y}
        return (y,) * self.outputs if loss is None else (loss, *(y,) * self.outputs)


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


def classifier() -> Any:
    """A model of transformers with another task."""
    torch.manual_seed(3)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 64}
    config = AutoConfig.for_model("llama", **sizes, **heads, pad_token_id=0, num_labels=3)
    return AutoModelForSequenceClassification.from_config(config)


class Classes(Sentences):
    """Sequences of classes."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = super().__getitem__(index)
        return {**row, "labels": row["input_ids"][0] % 3}


def plain_sgd(options: dict[str, Any]) -> dict[str, Any]:
    optimizer = torch.optim.SGD(options["model"].parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.2, patience=0)
    return {"optimizers": (optimizer, schedule)}


class TooLarge(TrainerCallback):
    """Lacks memory for batches of more than two rows."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.train_batch_size > 2:
            raise RuntimeError("CUDA out of memory.")  # by which accelerate knows it on any device


BY_EPOCH = {"eval_strategy": "epoch"}
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


def build(kind: type, case: dict[str, Any], folder: Path, **flags: Any) -> Any:
    """Return a trainer of one of the classes."""
    arguments: Any = TrainingArguments if kind is Trainer else NpuTrainingArguments
    usual = {
        "learning_rate": 0.05,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        "label_names": ["labels"],
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    args = arguments(output_dir=str(folder), **{**usual, **case.get("flags", {}), **flags})
    data = case.get("data", Points)
    options = {"model": case.get("model", Line)(), "train_dataset": data(), "eval_dataset": data()}
    options = {**options, **case.get("options", {})}
    if "more" in case:
        options.update(case["more"](options))
    wrap: Callable[[Any], type] = case.get("wrap", lambda base: base)
    return wrap(kind)(args=args, **options)


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
