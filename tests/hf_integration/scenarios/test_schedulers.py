"""Every schedule of the learning rate that transformers has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers.trainer_utils import SchedulerType

from tests.hf_integration.divided import train
from tests.hf_integration.scenarios.conftest import Trained, small

NEEDED = {
    "cosine_with_min_lr": {"min_lr": 1e-4},
    "cosine_warmup_with_min_lr": {"min_lr": 1e-4},
    "polynomial": {"power": 2.0, "lr_end": 1e-5},
    "warmup_stable_decay": {"num_decay_steps": 3},
}
"""What a scheduler cannot do without, or that shows that it is handed on."""
BY_METRIC = ("reduce_lr_on_plateau", "greedy")


def every_scheduler(trainer: Any) -> dict[str, list[float]]:
    """The learning rates of ten steps by each scheduler that counts steps."""
    found = {}
    for kind in SchedulerType:
        if kind.value in BY_METRIC:
            continue
        for group in trainer.optimizer.param_groups:
            group["lr"] = group["initial_lr"] = 1e-2
        trainer.args.lr_scheduler_type = kind
        trainer.args.lr_scheduler_kwargs = NEEDED.get(kind.value, {})
        trainer.lr_scheduler = None
        trainer.create_scheduler(10)
        rates = []
        for _ in range(10):
            rates.append(trainer.get_learning_rates())
            trainer.optimizer.step()
            trainer.lr_scheduler.step()
        found[kind.value] = rates
    return found


@pytest.mark.parametrize("layout", [(2, 2, 1), (2, 1, 2)], ids=str)
def test_every_scheduler(on_four: Trained, layout: tuple[int, int, int], tmp_path: Path) -> None:
    run = small(steps=1, after=every_scheduler, flags={"max_grad_norm": 0.0})
    wanted = train(run, tmp_path / "one")
    assert len(wanted.after) + len(BY_METRIC) == len(SchedulerType)
    for record in on_four(run.at(*layout)):
        assert record.after == wanted.after
