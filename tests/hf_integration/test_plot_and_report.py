"""The loss plot, the pipeline's timeline, the closing report and the numbers in the log."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from transformers import TrainerControl, TrainerState, TrainingArguments

from hf_integration.device import DeviceDescription, ranks_in_words
from hf_integration.errors import TrainingInputError
from hf_integration.plot import plot_losses, series
from hf_integration.report import RunFiles, summary
from hf_integration.timeline import MeasuredTimeline, idle_shares, placement_of, plot_timeline
from hf_integration.trainer import perplexity
from npu_plugins.pipeline.schedules import build_schedule, simulate
from npu_plugins.pipeline.schedules.chrome_trace import chrome_trace, parse_chrome_trace

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


def drawn(name: str, folder: Path) -> Any:
    """The picture of a schedule whose actions take 20 ms, with a trace between."""
    trace = chrome_trace(simulate(build_schedule(name, 2, 4)).spans(), seconds=0.02)
    return imread(plot_timeline(parse_chrome_trace(trace), folder / f"{name}.png", name))


def test_a_timeline_is_a_png_that_changes_with_the_spans(tmp_path: Path) -> None:
    first, second = drawn("1f1b", tmp_path), drawn("zb-v", tmp_path)
    assert first.shape == second.shape
    assert (first != second).any()


def test_the_idle_share_of_each_rank_is_the_closed_form_of_the_schedule() -> None:
    spans = simulate(build_schedule("1f1b", 2, 4)).spans()
    assert idle_shares(spans, 2) == pytest.approx([1 / 5, 1 / 5])  # (p - 1) / (m + p - 1)
    assert placement_of(simulate(build_schedule("zb-v", 2, 4)).spans()).rank_of == (0, 1, 1, 0)


@pytest.mark.parametrize("step", [0, 3, 9])
def test_a_step_that_is_not_trained_has_no_timeline(step: int, tmp_path: Path) -> None:
    state = TrainerState(global_step=3, max_steps=8)
    begin = MeasuredTimeline(step, tmp_path, "").on_train_begin
    with pytest.raises(TrainingInputError, match=f"is {step}, but this run trains the steps 4 to 8"):
        begin(TrainingArguments(str(tmp_path), use_cpu=True), state, TrainerControl())


def test_ranks_in_words() -> None:
    assert ranks_in_words(4, "simulated_npu") == "4 simulated NPUs"
    assert ranks_in_words(1, "cpu") == "1 CPU rank"


def test_a_simulated_run_says_so() -> None:
    device = replace(DEVICE, platform="simulated_npu")
    text = summary(history=[], device=device, files=RunFiles(log=Path("log.jsonl")), continuation=None)
    assert text.splitlines()[1].startswith("on            2 simulated NPUs: no card took part")


def test_summary_states_every_fact() -> None:
    files = RunFiles(
        model=Path("o/model"), plot=Path("o/loss.png"), timeline=Path("o/t.png"), log=Path("o/log.jsonl")
    )
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
        "timeline      o/t.png",
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
