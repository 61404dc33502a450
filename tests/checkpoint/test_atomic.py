"""A run's checkpoints in one process: whole or not there, rotated, found again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.checkpoint import CheckpointError, find_faults, latest_good, rotate, save_checkpoint
from npu_plugins.checkpoint.manifest import MANIFEST_FILE


def writer(text: str = "weights") -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.bin").write_text(text)
        (folder / "optimizer").mkdir()
        (folder / "optimizer" / "state.bin").write_text(text * 100)

    return write


def save(directory: Path, step: int, text: str = "weights", **options: Any) -> Path:
    return save_checkpoint(directory, step, writer(text), model="m", **options)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def found(directory: Path) -> int | None:
    good = latest_good(directory)
    return None if good is None else good.manifest.step


def test_a_checkpoint_is_saved_under_its_step(tmp_path: Path) -> None:
    path = save(tmp_path / "run", 10, zero_stage=2, extra={"loss": 1.5})
    assert path == tmp_path / "run" / "checkpoint-10"
    assert names(path) == ["model.bin", MANIFEST_FILE, "optimizer"]
    good = latest_good(tmp_path / "run")
    assert good is not None
    assert (good.path, good.manifest.extra, good.manifest.layout.zero_stage) == (path, {"loss": 1.5}, 2)
    assert set(good.manifest.files) == {"model.bin", "optimizer/state.bin"}
    assert find_faults(path) == []


def test_there_is_none_where_nothing_was_saved(tmp_path: Path) -> None:
    assert latest_good(tmp_path / "nothing") is None
    (tmp_path / "checkpoint-3").mkdir()
    (tmp_path / "checkpoint-3" / "model.safetensors").write_bytes(b"of transformers' Trainer")
    assert latest_good(tmp_path) is None


def test_the_newest_that_verifies_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (8, 9, 10):
        save(tmp_path, step)
    with (tmp_path / "checkpoint-10" / "optimizer" / "state.bin").open("r+b") as file:
        file.write(b"X")
    (tmp_path / "checkpoint-9" / MANIFEST_FILE).unlink()
    assert found(tmp_path) == 8
    assert "checkpoint-10 is passed over: optimizer/state.bin has another content" in caplog.text
    assert "checkpoint-9 is passed over" in caplog.text


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 10, "first")
    save(tmp_path, 10, "second")
    assert names(tmp_path) == ["checkpoint-10"]
    assert (tmp_path / "checkpoint-10" / "model.bin").read_text() == "second"
    assert found(tmp_path) == 10


class Crash(BaseException):
    """Ends a save as SIGKILL does: nothing here catches it."""


def crash_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    """Let the `moment`-th renaming from now crash before it is done."""
    rename, left = Path.rename, [moment]

    def renamed(self: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] == 0:
            raise Crash
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", renamed)


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_crash_between_renamings_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    save(tmp_path, 10, "first")
    with monkeypatch.context() as patched:
        crash_at(patched, moment)
        with pytest.raises(Crash):
            save(tmp_path, 10, "second")
    good = latest_good(tmp_path)
    assert good is not None
    assert (good.path / "model.bin").read_text() == ("first" if moment < 3 else "second")
    save(tmp_path, 11)
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-11"]
    assert (tmp_path / "checkpoint-10" / "model.bin").read_text() == ("first" if moment < 3 else "second")


def test_what_a_crash_left_is_cleared_by_the_next_save(tmp_path: Path) -> None:
    for name in (".tmp-checkpoint-5", ".tmp-deleted-checkpoint-1"):
        (tmp_path / name / "part").mkdir(parents=True)
        (tmp_path / name / "part" / "x").write_text("half")
    save(tmp_path, 6)
    assert names(tmp_path) == ["checkpoint-6"]


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    for name in ("runs", ".tmp-mine", ".old-mine"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-1").mkdir()
    for step in (2, 3, 4):
        save(tmp_path, step, save_total_limit=1)
    assert names(tmp_path) == [".old-mine", ".tmp-mine", "checkpoint-1", "checkpoint-4", "runs"]


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EACCES])
def test_a_failing_write_changes_nothing(tmp_path: Path, reason: int) -> None:
    save(tmp_path, 1)

    def write(folder: Path) -> None:
        (folder / "half").write_text("of it")
        raise OSError(reason, os.strerror(reason), str(folder / "other"))

    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(tmp_path, 2, write, model="m", save_total_limit=1)
    text = str(caught.value)
    assert text.startswith(f"checkpoint-2 was not saved in {tmp_path}: ")
    assert os.strerror(reason) in text
    assert ("make room, or lower save_total_limit" in text) == (reason == errno.ENOSPC)
    assert "\n" not in text
    assert names(tmp_path) == ["checkpoint-1"]
    assert found(tmp_path) == 1


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    def call(write: Callable[[Path], Any], step: int = 1, **options: Any) -> None:
        save_checkpoint(tmp_path / "run", step, write, model="m", **options)

    with pytest.raises(CheckpointError, match="save_total_limit is 0"):
        call(writer(), save_total_limit=0)
    with pytest.raises(CheckpointError, match="step is -1"):
        call(writer(), step=-1)
    with pytest.raises(CheckpointError, match="no rank wrote a file"):
        call(lambda folder: None)
    with pytest.raises(CheckpointError, match="which is made here"):
        call(lambda folder: (folder / MANIFEST_FILE).write_text("{}"))
    with pytest.raises(CheckpointError, match="not JSON serializable"):
        call(writer(), extra={"scheduler": object()})
    assert names(tmp_path / "run") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"was not saved in .*file: .*Error"):
        save(tmp_path / "file", 1)


def test_rotation_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        save(tmp_path, step, save_total_limit=2, keep={1})
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-10"]
    save(tmp_path, 10, save_total_limit=2, keep={1, 5})
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-10"], "what is not there takes no room"
    save(tmp_path, 11, save_total_limit=1, keep={1})
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-11"]


def test_rotation_never_deletes_what_was_just_saved(tmp_path: Path) -> None:
    """Steps go back when a run resumes from an older checkpoint."""
    save(tmp_path, 30)
    save(tmp_path, 20, save_total_limit=1)
    assert "checkpoint-20" in names(tmp_path)
    assert latest_good(tmp_path) is not None


@given(
    steps=st.sets(st.integers(1, 30), min_size=1, max_size=6),
    broken=st.sets(st.integers(1, 30)),
    limit=st.integers(1, 4),
)
def test_rotation_never_costs_the_last_good_one(
    tmp_path_factory: pytest.TempPathFactory, steps: set[int], broken: set[int], limit: int
) -> None:
    directory = tmp_path_factory.mktemp("run")
    for step in steps:
        save(directory, step)
        if step in broken:
            (directory / f"checkpoint-{step}" / "model.bin").write_text("")
    good = sorted(steps - broken, reverse=True)
    rotate(directory, limit)
    assert names(directory) == sorted(f"checkpoint-{step}" for step in good[:limit])
    assert found(directory) == (good[0] if good else None)
