"""Reading, tokenizing, packing and splitting of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_integration.byte_tokenizer import build_byte_tokenizer
from hf_integration.data import (
    PackedBlocks,
    TokenizedText,
    load_data,
    read_documents,
    split_blocks,
    standard_library,
    tokenize,
)
from hf_integration.errors import TrainingInputError

END = 256


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the cache of `datasets` inside the test's folder."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def load(train_file: Path | None = None, **changes: Any) -> Any:
    """Call load_data with defaults that suit short texts."""
    options: dict[str, Any] = {
        "train_file": None if train_file is None else str(train_file),
        "validation_file": None,
        "text_column": "text",
        "stdlib_bytes": 4096,
        "validation_fraction": 0.25,
        "max_eval_blocks": 0,
        "block_size": 8,
        "tokenizer": build_byte_tokenizer(),
    }
    return load_data(**{**options, **changes})


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=8), block=st.integers(1, 7))
def test_blocks_are_the_text_cut_up_whatever_the_chunks(lengths: list[int], block: int) -> None:
    tokens = np.arange(sum(lengths), dtype=np.int32)
    parts = np.split(tokens, np.cumsum(lengths)[:-1])
    blocks = PackedBlocks(TokenizedText(parts=parts, num_bytes=len(tokens)), block)
    assert len(blocks) == len(tokens) // block
    for index in range(len(blocks)):
        expected = torch.arange(index * block, (index + 1) * block)
        assert torch.equal(blocks[index]["input_ids"], expected)
        assert torch.equal(blocks[index]["labels"], expected)
    with pytest.raises(IndexError):
        blocks[len(blocks)]


def test_documents_end_with_the_end_of_text_token(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text("\n".join(json.dumps({"text": text}) for text in ("ab", "", "ç")), encoding="utf-8")
    text = tokenize(read_documents(file, "text"), build_byte_tokenizer())
    assert np.concatenate(text.parts).tolist() == [97, 98, END, 0xC3, 0xA7, END]
    assert text.num_bytes == 4
    assert text.num_tokens == 6


def test_directory_joins_text_and_json(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("first\nsecond\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps({"body": "third", "id": 1}), encoding="utf-8")
    (tmp_path / "c.bin").write_bytes(b"\x00\x01")
    documents = read_documents(tmp_path, "body")
    assert [text.rstrip() for text in documents["text"]] == ["first\nsecond", "third"]


def test_standard_library_is_cut_to_the_byte_and_the_same_each_time() -> None:
    once, again = standard_library(10_000), standard_library(10_000)
    assert once["text"] == again["text"]
    assert 9_990 < sum(len(text.encode("utf-8")) for text in once["text"]) <= 10_000
    assert "import" in "".join(once["text"])


def test_splits_share_no_block_and_lose_none(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("".join(chr(33 + i) for i in range(80)), encoding="utf-8")
    data = load(file)
    seen = [data.train[i]["input_ids"].tolist() for i in range(len(data.train))]
    held_out = [data.evaluation[i]["input_ids"].tolist() for i in range(len(data.evaluation))]
    assert sum(seen + held_out, []) == list(range(33, 113))
    assert len(held_out) == 2  # a quarter of ten blocks, rounded to even
    assert data.tokens_per_byte == 81 / 80


@given(blocks=st.integers(2, 50), fraction=st.floats(0.001, 0.999))
def test_both_splits_get_at_least_one_block(blocks: int, fraction: float) -> None:
    text = TokenizedText(parts=[np.zeros(blocks, dtype=np.int32)], num_bytes=blocks)
    train, evaluation = split_blocks(PackedBlocks(text, 1), fraction)
    assert len(train) >= 1 and len(evaluation) >= 1
    assert len(train) + len(evaluation) == blocks


def test_validation_file_and_cap(tmp_path: Path) -> None:
    train, validation = tmp_path / "t.txt", tmp_path / "v.txt"
    train.write_text("a" * 40, encoding="utf-8")
    validation.write_text("b" * 40, encoding="utf-8")
    data = load(train, validation_file=str(validation), max_eval_blocks=3)
    assert len(data.train) == 5
    assert len(data.evaluation) == 3
    assert set(data.evaluation[0]["input_ids"].tolist()) == {ord("b")}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "is empty; give a file with text"),
        ("short.txt", b"one line", r"makes 1 sequence\(s\) of 8 tokens, but one to train on"),
        ("latin.txt", b"\xe9t\xe9 " * 20, "cannot be read as UTF-8 text or JSON lines"),
        ("broken.jsonl", b'{"text": "a"}\n{"text": ', "cannot be read as UTF-8 text or JSON lines"),
        ("other.jsonl", b'{"body": "a", "id": 1}\n', "no field 'text' but body, id; name the right one"),
        ("hole.jsonl", b'{"text": "a"}\n{"id": 1}\n', "1 of the 2 records of .* lack the field 'text'"),
        ("number.jsonl", b'{"text": 3}\n', "field 'text' of .* holds int64, not text"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(TrainingInputError, match=message):
        load(file)


def test_directory_without_text_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"1")
    with pytest.raises(TrainingInputError, match=r"holds no file that ends in .*among its 1 file\(s\)"):
        load(folder)


def test_short_validation_file_is_refused_by_name(tmp_path: Path) -> None:
    train, validation = tmp_path / "t.txt", tmp_path / "v.txt"
    train.write_text("a" * 40, encoding="utf-8")
    validation.write_text("b", encoding="utf-8")
    with pytest.raises(
        TrainingInputError, match="--validation_file is shorter than one sequence of 8 tokens"
    ):
        load(train, validation_file=str(validation))
