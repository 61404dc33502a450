"""What a crash leaves beside a directory that is written aside, and what of it the next save clears away."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_plugins.checkpoint.aside import clean, found_at


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize(
    ("tag", "left"),
    [
        (
            "global_step20",
            [".tmp-global_step10", ".tmp-deleted-global_step9", ".tmp-deleted-old-global_step1"],
        ),
        ("epoch1-step2.best", [".tmp-epoch0-step77.best", ".tmp-epoch1-step2.best"]),
        ("best", [".tmp-best", ".tmp-deleted-old-best"]),
    ],
)
def test_saves_of_one_run_differ_in_their_numbers(tmp_path: Path, tag: str, left: list[str]) -> None:
    others = [".tmp-mine", ".tmp-global_step", ".tmp-bestest", ".tmp-epoch0-step7xbest", "runs", ".old-mine"]
    for name in (*left, *others):
        (tmp_path / name / "part").mkdir(parents=True)
    clean(tmp_path / tag)
    assert names(tmp_path) == sorted(others)


def test_what_stepped_aside_is_put_back_unless_its_successor_is_there(tmp_path: Path) -> None:
    for name in (".old-step1", ".old-step2", "step2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    assert found_at(tmp_path / "step1") == tmp_path / ".old-step1"
    assert found_at(tmp_path / "step2") == tmp_path / "step2"
    assert found_at(tmp_path / "step3") == tmp_path / "step3"
    clean(tmp_path / "step9")
    assert names(tmp_path) == ["step1", "step2"]
    assert (tmp_path / "step1" / "x").read_text() == ".old-step1"
    assert (tmp_path / "step2" / "x").read_text() == "step2"
