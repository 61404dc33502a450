"""``ds-config plan`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ds_configs.cli import main


def run(*words: str) -> int:
    """Run the command."""
    return main(["plan", *words])


def test_the_plan_is_printed_and_its_configuration_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "ds.json"
    words = ["--model", "llama-2-7b", "--npus", "8", "--seq", "2048", "--global-batch", "64", "--output"]
    assert run(*words, str(target)) == 0
    text = capsys.readouterr().out
    assert "Proposed: " in text and f"--deepspeed {target}" in text
    assert "zero_optimization" in json.loads(target.read_text(encoding="utf-8"))


def test_json_has_the_same_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(*["--params", "1.3B", "--npus", "4", "--seq", "1024", "--global-batch", "16", "--format", "json"])
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    best = data["proposals"][0]
    assert best["dp"] * best["tp"] * best["pp"] == 4
    assert best["seconds"] == pytest.approx(sum(best["time"].values()))
    assert best["memory_bytes"] <= data["capacity_bytes"]
    assert data["ds_config"]["train_micro_batch_size_per_gpu"] == best["micro_batch"]
    assert {"family", "engine", "reason"} == set(data["slower"][0])


def test_nothing_fits_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--params 70B --npus 1 --seq 2048 --global-batch 1 --hbm 1GiB --host-memory 1GiB"
    assert run(*words.split()) == 1
    assert "Nothing fits." in (text := capsys.readouterr().out)
    assert "nearest: " in text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--model llama-2-7b --npus 8 --seq 9999 --global-batch 8", "exceeds the 4096 positions"),
        ("--model llama-2-7b --npus 8 --seq 2048 --global-batch 0", "global_batch is 0"),
        (
            "--model llama-2-7b --npus 8 --seq 2048 --global-batch 8 --hardware tpu",
            "no hardware is named 'tpu'",
        ),
        ("--model llama-2-7b --npus 8 --seq 2048 --global-batch 8 --hbm 0", "no memory at all"),
        ("--model nothing --npus 8 --seq 2048 --global-batch 8", "nothing"),
        ("--params x --npus 8 --seq 2048 --global-batch 8", "'x'"),
        ("--params 1B --npus 1 --seq 128 --global-batch 8 --output /nowhere/x", "cannot write /nowhere/x"),
    ],
)
def test_refusals_are_one_sentence(words: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words.split()) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1 and "Traceback" not in error
