"""What is logged, when, and where it goes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hf_integration.scenarios.conftest import Trained, small


def endless(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """A loss that is no number."""
    return outputs.logits.float().sum() * float("nan")


@pytest.mark.parametrize(("layout", "filtered"), [((2, 2, 1), True), ((2, 1, 2), False)])
def test_a_loss_that_is_no_number(on_four: Trained, layout: tuple[int, int, int], filtered: bool) -> None:
    """The filter of the log, which is on by default, shows the mean of the entries before."""
    flags = {"logging_nan_inf_filter": filtered}
    run = small(steps=2, flags=flags, trainer={"compute_loss_func": endless}).at(*layout)
    for record in on_four(run):
        assert [math.isnan(loss) for loss in record.values("loss")] == [not filtered] * 2


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The curves of a TensorBoard directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def test_tensorboard_shows_the_log(on_four: Trained, tmp_path: Path) -> None:
    """One directory of one rank, with every number of the log: speed and each rank's memory, too."""
    flags = {"report_to": "tensorboard", "eval_strategy": "steps", "eval_steps": 2}
    records = on_four(small(steps=3, flags=flags).at(2, 2, 1))
    (folder,) = {path.parent for path in tmp_path.rglob("events.out.tfevents.*")}
    curves = scalars(folder)
    for key, tag in [("loss", "train/loss"), ("grad_norm", "train/grad_norm"), ("eval_loss", "eval/loss")]:
        logged = [(entry["step"], entry[key]) for entry in records[0].log if key in entry]
        assert curves[tag] == [(step, pytest.approx(value)) for step, value in logged]
    assert {f"train/memory_mib_rank{rank}" for rank in range(4)} <= curves.keys()
    assert "train/cpu_tokens_per_s" in curves
