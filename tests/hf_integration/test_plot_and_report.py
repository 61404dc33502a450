"""The loss plot, the closing report and the numbers in the log."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from matplotlib.image import imread

from hf_integration.device import DeviceDescription
from hf_integration.errors import TrainingInputError
from hf_integration.plot import plot_losses, series
from hf_integration.report import RunFiles, summary
from hf_integration.trainer import perplexity

HISTORY = [
    {"step": 1, "loss": 5.5, "nats_per_byte": 5.0},
    {"step": 10, "loss": 3.3, "nats_per_byte": 3.0, "some_npu_tokens_per_s": 1000.0},
    {"step": 20, "loss": 2.2, "nats_per_byte": 2.0, "some_npu_tokens_per_s": 3000.0},
    {"step": 20, "eval_loss": 2.4, "eval_nats_per_byte": 2.2, "eval_perplexity": 11.02},
]
DEVICE = DeviceDescription(
    device="npu:0",
    platform="some_npu",
    name="Ascend910B3",
    backend="hccl",
    accelerator="npu_plugins.accelerator.NpuAccelerator",
    world_size=2,
)


def test_series_takes_the_entries_that_have_the_key() -> None:
    assert series(HISTORY, "nats_per_byte") == ([1, 10, 20], [5.0, 3.0, 2.0])
    assert series(HISTORY, "absent") == ([], [])


def test_plot_is_a_png_that_changes_with_the_losses(tmp_path: Path) -> None:
    first = imread(plot_losses(HISTORY, tmp_path / "new" / "a.png", "a title"))
    other = [{**entry, "nats_per_byte": 1.0} if "loss" in entry else entry for entry in HISTORY]
    second = imread(plot_losses(other, tmp_path / "b.png", "a title"))
    assert first.shape == second.shape
    assert (first != second).any()


def test_plot_without_a_loss_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingInputError, match="no loss to plot"):
        plot_losses([{"step": 1, "epoch": 0.1}], tmp_path / "a.png", "")
    assert not (tmp_path / "a.png").exists()


def test_summary_states_every_fact() -> None:
    files = RunFiles(log=Path("o/log.jsonl"), model=Path("o/model"), plot=Path("o/loss.png"))
    text = summary(history=HISTORY, device=DEVICE, files=files, continuation="def a\nb")
    assert text.splitlines()[1:] == [
        "device        npu:0 (Ascend910B3), 2 rank(s)",
        "backend       hccl",
        "accelerator   npu_plugins.accelerator.NpuAccelerator",
        "loss          5.0000 (step 1) -> 2.0000 (step 20) nats per byte",
        "evaluation    2.2000 nats per byte, perplexity 11.02 per token",
        "speed         2000 tokens/s on some npu (median, all ranks together)",
        "model         o/model",
        "plot          o/loss.png",
        "log           o/log.jsonl",
        "sample",
        "  | def a",
        "  | b",
    ]


def test_summary_leaves_out_what_was_not_done() -> None:
    text = summary(history=[], device=DEVICE, files=RunFiles(log=Path("log.jsonl")), continuation=None)
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["device", "backend", "accelerator", "log"]


def test_perplexity() -> None:
    assert perplexity(math.log(7)) == pytest.approx(7)
    assert perplexity(1e6) == math.inf
