"""The folder of a report keeps dumps and what is known of absent ranks, and names a faulty file."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.diagnostics.hang.dump import RankDump
from npu_plugins.diagnostics.hang.files import load, save_absences, save_dump
from npu_plugins.diagnostics.hang.findings import Absence

DUMPS = {
    rank: RankDump(rank=rank, world_size=12, host="node-1", pid=17, reason="timeout", taken=1.0)
    for rank in (2, 10)
}
KILLED = Absence("killed", "SIGKILL", when=3.0, host="node-1", pid=18)


def saved(directory: Path) -> Path:
    for dump in DUMPS.values():
        save_dump(directory, dump)
    return directory


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    save_absences(saved(tmp_path / "new"), {0: KILLED})
    assert load(tmp_path / "new") == (DUMPS, {0: KILLED})
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "rank2.json",
        "rank10.json",
        "absent.json",
    }


def test_without_absent_ranks_there_is_no_file_of_them(tmp_path: Path) -> None:
    (saved(tmp_path) / "report.txt").write_text("beside the dumps")
    assert load(tmp_path) == (DUMPS, {})


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("absent.json", '{"0": {"kind": "bored"}}', "'bored'; it is one of killed"),
        ("absent.json", "[]", "absent.json does not say which ranks"),
    ],
)
def test_a_faulty_file_is_named(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (saved(tmp_path) / name).write_text(text)
    with pytest.raises(DiagnosticsError, match=sentence):
        load(tmp_path)


def test_a_damaged_dump_leaves_the_others_and_its_rank_without_one(tmp_path: Path) -> None:
    (saved(tmp_path) / "rank10.json").write_text("{")
    dumps, absent = load(tmp_path)
    assert dumps == {2: DUMPS[2]}
    assert absent[10].detail.startswith(f"its dump is damaged: {tmp_path / 'rank10.json'}: This is no dump")
    save_absences(tmp_path, {10: KILLED})
    assert load(tmp_path)[1] == {10: KILLED}  # how it ended is known better
    (tmp_path / "rank2.json").write_bytes(b"\xff")
    with pytest.raises(DiagnosticsError, match="holds no dump that can be read"):
        load(tmp_path)


def test_a_folder_without_dumps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticsError, match="holds no rank<rank>.json"):
        load(tmp_path)
    with pytest.raises(DiagnosticsError, match="is no folder"):
        load(tmp_path / "missing")
