"""Optimizer and scheduler of the DeepSpeed configuration, with a divided model, against plain torch's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer

from tests.harness.pool import RankPool
from tests.hf_integration.divided import Record, Run, train, train_on_rank
from tests.pipeline.conftest import Ranks, kept

STEPS, WARMUP, RATE = 6, 2, 1e-2
FLAGS = {"warmup_steps": WARMUP, "learning_rate": RATE, "weight_decay": 0.01}
CONFIG: dict[str, Any] = {
    **dict.fromkeys(
        ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
    ),
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 1},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto", "torch_adam": True},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "warmup_type": "linear",
            "total_num_steps": "auto",
        },
    },
}


def factor(step: int) -> float:
    """DeepSpeed's WarmupDecayLR, which begins one step late: up to 1, then down to 0 at the last step."""
    count = max(0, step - 1)
    return count / WARMUP if count < WARMUP else (STEPS - count) / (STEPS - WARMUP)


class ByHand(Trainer):
    """The Trainer with one group of weights, as DeepSpeed's optimizer has, and rates by the formula."""

    def __init__(self, *args: Any, weights: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mesh = None

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, weight_decay=0.01)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        self.lr_scheduler = LambdaLR(self.optimizer, factor)
        return self.lr_scheduler


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on simulated NPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "hccl")


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The run in one process."""
    run = Run(steps=STEPS, kind=ByHand, flags=FLAGS)
    return train(run, tmp_path_factory.mktemp("hand"))


@pytest.mark.npu
@pytest.mark.parametrize("layout", [(2, 1, 2), (1, 2, 2)], ids=str)
def test_losses_and_rates_are_those_of_the_formula(
    four: Ranks, by_hand: Record, layout: Any, tmp_path: Path
) -> None:
    run = replace(Run(steps=STEPS).at(*layout), flags={**FLAGS, "deepspeed": CONFIG})
    for record in four.run(train_on_rank, run, tmp_path, "hccl", timeout=250):
        assert record.values("loss") == pytest.approx(by_hand.values("loss"), rel=1e-5)
        assert record.values("grad_norm") == pytest.approx(by_hand.values("grad_norm"), rel=1e-5)
        assert record.values("learning_rate")[1:-1] == pytest.approx(
            [RATE * factor(step) for step in range(2, STEPS)]
        )
