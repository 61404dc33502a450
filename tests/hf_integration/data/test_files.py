"""Finding and reading of text and JSON files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_integration.data.files import Places, read_documents, read_json_lines
from hf_integration.errors import TrainingInputError


def test_directory_joins_text_and_json(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("first\nsecond\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps({"body": "third", "id": 1}), encoding="utf-8")
    (tmp_path / "c.bin").write_bytes(b"\x00\x01")
    documents = read_documents(tmp_path, "body")
    assert [text.rstrip() for text in documents["text"]] == ["first\nsecond", "third"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "is empty; give a file with text"),
        ("latin.txt", b"\xe9t\xe9 " * 20, "cannot be read as UTF-8 text or JSON lines"),
        ("broken.jsonl", b'{"text": "a"}\n{"text": ', "cannot be read as UTF-8 text or JSON lines"),
        ("other.jsonl", b'{"body": "a", "id": 1}\n', "no field 'text' but body, id; name the right one"),
        ("talk.jsonl", b'{"messages": []}\n', "no field 'text' but messages; .* with --task sft"),
        ("hole.jsonl", b'{"text": "a"}\n{"id": 1}\n', "1 of the 2 records of .* lack the field 'text'"),
        ("number.jsonl", b'{"text": 3}\n', "field 'text' of .* holds int64, not text"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(TrainingInputError, match=message):
        read_documents(file, "text")


def test_directory_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"1")
    with pytest.raises(TrainingInputError, match=r"holds no file that ends in .*among its 1 file\(s\)"):
        read_documents(tmp_path, "text")


def test_json_lines_are_read_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n{"b": "ç"}\n', encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("", encoding="utf-8")
    (tmp_path / "c.json").write_text("no JSON", encoding="utf-8")
    (tmp_path / "README.md").write_text("about the data", encoding="utf-8")
    found = read_json_lines(tmp_path)
    assert found.lines["text"][:] == ['{"a": 1}', "", '{"b": "ç"}', "no JSON"]
    assert [found.places[i] for i in (0, 2, 3)] == [
        f"line 1 of {tmp_path}/a.jsonl",
        f"line 3 of {tmp_path}/a.jsonl",
        f"line 1 of {tmp_path}/c.json",
    ]


def test_what_holds_no_json_lines_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("text", encoding="utf-8")
    for path in (file, tmp_path):
        with pytest.raises(TrainingInputError, match="is or holds no file that ends in .json or .jsonl"):
            read_json_lines(path)
    (tmp_path / "b.jsonl").write_bytes(b"")
    with pytest.raises(TrainingInputError, match="is empty; give a file with text"):
        read_json_lines(tmp_path / "b.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(TrainingInputError, match="cannot be read as UTF-8 text or JSON lines"):
        read_json_lines(tmp_path / "b.jsonl")


def test_line_beyond_the_last_has_no_place() -> None:
    with pytest.raises(IndexError, match="there are only 5 lines"):
        Places(("a", "b"), (2, 3))[5]
