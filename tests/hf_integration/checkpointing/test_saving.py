"""The parts of a checkpoint are written one after the other, and a fault keeps its real reason."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hf_integration.checkpointing.saving import write_together
from hf_integration.errors import TrainingInputError
from npu_plugins.checkpoint import CheckpointError, save_checkpoint
from npu_plugins.checkpoint.ranks import Ranks


def failing(error: Exception) -> Any:
    """Return a part that raises an error."""

    def part(folder: Path) -> None:
        raise error

    return part


def saved(run: Path, *parts: Any) -> str:
    """Save a checkpoint of these parts; return the sentence that it is refused with."""
    with pytest.raises(CheckpointError) as told:
        save_checkpoint(run, 1, lambda folder: write_together(parts, folder, Ranks()), model="m")
    return str(told.value)


def test_parts_are_written_in_order_until_one_fails(tmp_path: Path) -> None:
    written: list[str] = []
    parts = [lambda _: written.append("model"), failing(ValueError("no")), lambda _: written.append("state")]
    assert "ValueError: no; earlier checkpoints are as they were" in saved(tmp_path, *parts)
    assert written == ["model"]
    assert list(tmp_path.iterdir()) == []


def test_sentence_of_this_package_stands_as_it_is(tmp_path: Path) -> None:
    told = saved(tmp_path, failing(TrainingInputError("the optimizer is of no known kind; choose another")))
    assert f"was not saved in {tmp_path}: the optimizer is of no known kind; choose another; " in told


@pytest.mark.parametrize(
    ("free", "reason"), [(0, "No space left on device"), (1 << 30, "RuntimeError: pos 128")]
)
def test_writer_that_only_says_it_failed_did_so_for_a_full_disk_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, reason: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    told = saved(tmp_path, failing(RuntimeError("pos 128")))
    assert reason in told
    assert ("make room" in told) == (free == 0)
