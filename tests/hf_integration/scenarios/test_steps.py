"""Losses, norms, rates and counts of whole runs, by what TrainingArguments say of data, optimizer and log.

Each run has several settings that do not concern each other, so that all of them meet each kind of engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from hf_integration.npu_trainer import NpuTrainer
from tests.hf_integration.comparing import same_log
from tests.hf_integration.divided import Sentences, train
from tests.hf_integration.scenarios.conftest import UNEVEN, Stream, Trained, small


def table(count: int) -> datasets.Dataset:
    """A data set of `datasets` with a column that no model takes."""
    rows = [{key: value.tolist() for key, value in row.items()} for row in Sentences(count, seed=1).rows]
    return datasets.Dataset.from_list([{**row, "source": "somewhere"} for row in rows])


class Frozen(NpuTrainer):
    """Trains all but the embeddings and the second layer."""

    def __init__(self, model: Any, **keywords: Any) -> None:
        model.get_input_embeddings().requires_grad_(False)
        model.model.layers[1].requires_grad_(False)
        super().__init__(model, **keywords)


EPOCHS: dict[str, Any] = {"steps": -1, "rows": UNEVEN, "micro_batches": 4}
PLATEAU: dict[str, Any] = {
    "eval_strategy": "steps",
    "eval_steps": 1,
    "metric_for_best_model": "eval_loss",
    "warmup_steps": 0,
}
RUNS = {
    "an epoch and a half that do not divide, evaluated before each": small(
        **EPOCHS,
        flags={
            "num_train_epochs": 1.5,
            "eval_on_start": True,
            "eval_strategy": "epoch",
            "logging_strategy": "epoch",
            "include_num_input_tokens_seen": "non_padding",
        },
    ),
    "sgd, in the order of the data": small(
        **EPOCHS,
        flags={
            "num_train_epochs": 2,
            "train_sampling_strategy": "sequential",
            "optim": "sgd",
            "optim_args": "momentum=0.9",
            "learning_rate": 0.5,
        },
    ),
    "adagrad, no incomplete batch, read by a worker": small(
        **EPOCHS,
        flags={
            "num_train_epochs": 2,
            "dataloader_drop_last": True,
            "dataloader_num_workers": 1,
            "dataloader_persistent_workers": True,
            "data_seed": 11,
            "optim": "adagrad",
            "weight_decay": 0.3,
        },
    ),
    "rmsprop, a stream": small(
        steps=4,
        micro_batches=4,
        trainer={"train_dataset": Stream(15)},
        flags={"optim": "rmsprop", "optim_args": "alpha=0.5", "max_grad_norm": 0.5},
    ),
    "fused AdamW, a table with a column too many, logged twice": small(
        steps=4,
        trainer={"train_dataset": table(20)},
        flags={
            "optim": "adamw_torch_fused",
            "adam_beta1": 0.5,
            "adam_epsilon": 1e-3,
            "logging_steps": 0.5,
            "eval_strategy": "steps",
            "eval_steps": 1,
            "eval_delay": 3,
        },
    ),
    "an optimizer of one's own, few batches, the first step logged and every third": small(
        steps=4,
        rows=6,
        micro_batches=4,
        trainer={"optimizer_cls_and_kwargs": (torch.optim.NAdam, {"lr": 1e-2, "eps": 1e-4})},
        flags={"logging_first_step": True, "logging_steps": 3},
    ),
    "frozen parts, with the cache emptied, memory measured and all tokens counted": small(
        steps=3,
        kind=Frozen,
        flags={
            "weight_decay": 0.3,
            "torch_empty_cache_steps": 1,
            "skip_memory_metrics": False,
            "include_num_input_tokens_seen": True,
        },
    ),
    "a rate that falls on a plateau": small(
        steps=4,
        flags={
            **PLATEAU,
            "lr_scheduler_type": "reduce_lr_on_plateau",
            # No loss falls to a tenth in a step, so that the rate is halved at each.
            "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "threshold": 0.9},
        },
    ),
    "a greedy rate": small(
        steps=4,
        flags={
            **PLATEAU,
            "lr_scheduler_type": "greedy",
            "lr_scheduler_kwargs": {"patience": 1, "factor": 0.5},
        },
    ),
}
LAYOUTS = {
    "an epoch and a half that do not divide, evaluated before each": [(1, 2, 2), (2, 1, 2)],
    "sgd, in the order of the data": [(2, 1, 2)],
    "adagrad, no incomplete batch, read by a worker": [(1, 2, 2)],
    "rmsprop, a stream": [(2, 1, 2)],
    "fused AdamW, a table with a column too many, logged twice": [(1, 2, 2)],
    "an optimizer of one's own, few batches, the first step logged and every third": [(2, 2, 1)],
    "frozen parts, with the cache emptied, memory measured and all tokens counted": [(2, 2, 1), (2, 1, 2)],
    "a rate that falls on a plateau": [(1, 2, 2)],
    "a greedy rate": [(2, 1, 2)],
}
"""(tp, pp, dp)."""


@pytest.mark.parametrize(("name", "layout"), [(name, each) for name in RUNS for each in LAYOUTS[name]])
def test_a_run_is_that_of_one_process(
    on_four: Trained, name: str, layout: tuple[int, int, int], tmp_path: Path
) -> None:
    wanted = train(RUNS[name], tmp_path / "one")
    # Where an epoch's batches do not divide among the replicas, its first half is not half of its batches.
    same_log(on_four(RUNS[name].at(*layout)), wanted, ignored=["epoch"])
