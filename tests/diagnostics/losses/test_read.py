"""Losses are found in whatever a run leaves behind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.diagnostics.losses import Curve, read_curve

STEPS, VALUES = (1, 2, 4), (4.25, 3.5, math.nan)


def entries() -> list[dict[str, float]]:
    """A Trainer's history, with an evaluation in it."""
    history = [{"loss": loss, "step": step} for step, loss in zip(STEPS, VALUES, strict=True)]
    return [*history[:2], {"eval_loss": 9.0, "step": 2}, history[2], {"train_loss": 1.0, "step": 4}]


def trainer_state(folder: Path) -> Path:
    state = {"epoch": 1.0, "global_step": 4, "log_history": entries(), "logging_steps": 1}
    (folder / "trainer_state.json").write_text(json.dumps(state, indent=2, sort_keys=True))
    return folder


def newest_checkpoint(folder: Path) -> Path:
    for step in (9, 10):
        (folder / f"checkpoint-{step}").mkdir()
        state = {"log_history": entries() if step == 10 else []}
        (folder / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state))
    return folder


def json_lines(folder: Path) -> Path:
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries()))
    return folder


def table(folder: Path) -> Path:
    rows = [f"{step},{loss},0.1" for step, loss in zip(STEPS, VALUES, strict=True)]
    (folder / "losses.csv").write_text("\n".join(["step,loss,lr", "3,,0.1", *rows]))
    return folder / "losses.csv"


def printed(folder: Path) -> Path:
    lines = ["Map: 100%", "{'loss': '4.25', 'epoch': '0.1'}", "{'loss': 3.5, 'grad_norm': nan, 'epoch': 0.2}"]
    lines += ["{'eval_loss': 9.0, 'epoch': 0.2}", " 40%|####| 4/10 {'loss': nan, 'grad_norm': inf}"]
    (folder / "run.log").write_text("\n".join(lines))
    return folder / "run.log"


def deepspeed_engine(folder: Path) -> Path:
    lines = [
        f"steps: {step} loss: {loss:0.4f} iter time (s): 0.1 samples/sec: 4.0"
        for step, loss in zip(STEPS, VALUES, strict=True)
    ]
    (folder / "run.txt").write_text("\n".join(lines))
    return folder / "run.txt"


def tensorboard(folder: Path) -> Path:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder / "runs" / "today"))
    for step, loss in zip(STEPS, VALUES, strict=True):
        summary = Summary(value=[Summary.Value(tag="train/loss", simple_value=loss)])
        writer.add_event(Event(step=step, summary=summary))
    writer.close()
    return folder


SOURCES = (trainer_state, newest_checkpoint, json_lines, table, printed, deepspeed_engine, tensorboard)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_every_source(source: Callable[[Path], Path], tmp_path: Path) -> None:
    curve = read_curve(source(tmp_path))
    assert curve.steps == (STEPS if source is not printed else (1, 2, 3))
    assert curve.values == pytest.approx(VALUES, nan_ok=True)
    assert curve.numbered == (source is not printed)


def test_a_step_that_was_trained_again_counts_once(tmp_path: Path) -> None:
    lines = [(1, 5.0), (2, 4.0), (2, 3.0)]
    text = "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in lines)
    (tmp_path / "log.jsonl").write_text(text)
    assert read_curve(tmp_path).values == (5.0, 3.0)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("log.jsonl", '{"step": 1, "eval_loss": 2}\n', "has no 'loss'; name another entry with --key"),
        ("log.jsonl", '{"step": 1,', "cannot be read as losses"),
        ("trainer_state.json", "{}", "cannot be read as losses (KeyError: 'log_history')"),
        ("model.bin", "", "holds neither trainer_state.json nor log.jsonl"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DiagnosticsError) as caught:
        read_curve(tmp_path)
    assert words in str(caught.value)
    with pytest.raises(DiagnosticsError, match="does not exist"):
        read_curve(tmp_path / "nothing")


def test_means_over_wider_intervals() -> None:
    curve = Curve("", (1, 2, 4, 8), (4.0, 3.0, 2.0, 1.0), 1)
    assert curve.at(4, 0) == (4 + 3 + 2 * 2) / 4
    assert curve.at(8, 4) == 1.0
    assert curve.at(8, 1) == (3 + 2 * 2 + 4 * 1) / 7


@pytest.mark.parametrize("text", ["[1, 2]", '[{"step": 1e400, "loss": 1}]', '{"log_history": 5}'])
def test_json_that_holds_no_entries_is_refused_with_what_to_give(text: str, tmp_path: Path) -> None:
    (tmp_path / "losses.json").write_text(text)
    with pytest.raises(DiagnosticsError, match="cannot be read as losses .*; give a run's output_dir"):
        read_curve(tmp_path / "losses.json")


def test_an_entry_before_the_first_step_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "losses.json").write_text('[{"step": 0, "loss": 3}, {"step": 1, "loss": 2}]')
    assert read_curve(tmp_path / "losses.json").steps == (1,)
