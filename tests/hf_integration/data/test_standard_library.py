"""The text to train on where none is named."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from hf_integration.data.standard_library import standard_library, standard_library_files


def test_standard_library_is_cut_to_the_byte_and_the_same_each_time() -> None:
    once, again = standard_library(10_000), standard_library(10_000)
    assert once["text"] == again["text"]
    assert 9_990 < sum(len(text.encode("utf-8")) for text in once["text"]) <= 10_000
    assert "import" in "".join(once["text"])


def test_files_come_in_the_order_of_their_paths_without_tests_and_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ["a.py", "a/z.py", "a-b.py", "b/c/d.py", "b/c.py", "z.py"]
    for name in [*wanted, "a/tests/x.py", "site-packages/y.py", "b/__pycache__/c.py", "b/notes.txt"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert list(standard_library_files()) == sorted(tmp_path / name for name in wanted)
