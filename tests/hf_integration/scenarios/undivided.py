"""Models, data and trainers of runs in which no model is divided."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForSequenceClassification, Trainer, TrainingArguments

from hf_integration.npu_arguments import NpuTrainingArguments
from tests.hf_integration.divided import Sentences

BY_EPOCH = {"eval_strategy": "epoch"}


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
