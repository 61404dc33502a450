"""Two checkpoints are the same bit by bit, or the first tensor that differs is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from npu_plugins.cli import main


def write(folder: Path, change: float = 0.0, more: bool = False) -> Path:
    """Write a directory of safetensors whose second tensor has one element changed."""
    folder.mkdir()
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    tensors["a"][1, 2] += change
    if more:
        tensors["c"] = torch.zeros(1)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_two_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, same = write(tmp_path / "one"), write(tmp_path / "same")
    assert main(["check", "parameters", str(one), str(same)]) == 0
    assert "all 2 tensors are the same, bit by bit, in" in capsys.readouterr().out
    other = write(tmp_path / "other", change=0.5, more=True)
    assert main(["check", "parameters", str(one), str(other)]) == 1
    told = capsys.readouterr().out
    assert (
        "1 of 2 tensors differ; the first is a[1, 2]: 5 against 5.5; 1 of its 6 elements differ, by" in told
    )
    assert f"only in {other}: c" in told
    assert main(["check", "parameters", str(one), str(other), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["differing"] == ["a"]


def test_a_run_without_records_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("gradients", "parameters", "memory"):
        assert main(["check", kind, str(tmp_path)]) == 1
        flag = "--check_memory" if kind == "memory" else "--check_gradients"
        assert f"{kind}.jsonl does not exist; train with {flag} N" in capsys.readouterr().err
