"""From arguments to rows, collator and notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_integration.byte_tokenizer import build_byte_tokenizer
from hf_integration.data import DataArguments, TrainingData, load_data
from hf_integration.data.load import padding_id
from hf_integration.errors import TrainingInputError
from tests.hf_integration.data.conftest import chat_tokenizer

END = 256


def load(train_file: Path | None = None, *, block_size: int = 8, **changes: Any) -> TrainingData:
    """Call load_data with settings that suit short texts."""
    options: dict[str, Any] = {"stdlib_bytes": 4096, "validation_fraction": 0.25, "max_eval_blocks": 0}
    named = {} if train_file is None else {"train_file": str(train_file)}
    arguments = DataArguments(**{**options, **named, **changes})
    return load_data(arguments, block_size=block_size, longest=64, tokenizer=build_byte_tokenizer())


def write(path: Path, records: list[Any]) -> Path:
    """Write ``records`` as JSON lines into ``path`` and return it."""
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return path


def tokens(rows: Any) -> list[list[int]]:
    """Return the token ids of all ``rows``."""
    return [rows[i]["input_ids"].tolist() for i in range(len(rows))]


def test_splits_share_no_block_and_lose_none(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("".join(chr(33 + i) for i in range(80)), encoding="utf-8")
    data = load(file)
    assert sum(tokens(data.train) + tokens(data.evaluation), []) == list(range(33, 113))
    assert len(data.evaluation) == 2  # a quarter of ten blocks, rounded to even
    assert data.tokens_per_byte == 81 / 80
    assert data.tokens_per_row == 8
    assert set(data.collator([data.train[0]])) == {"input_ids", "labels"}


def test_standard_library_without_a_file() -> None:
    data = load()
    assert len(data.train) + len(data.evaluation) in (512, 513)


def test_validation_file_and_cap(tmp_path: Path) -> None:
    train, validation = tmp_path / "t.txt", tmp_path / "v.txt"
    train.write_text("a" * 40, encoding="utf-8")
    validation.write_text("b" * 40, encoding="utf-8")
    data = load(train, validation_file=str(validation), max_eval_blocks=3)
    assert len(data.train) == 5
    assert len(data.evaluation) == 3
    assert set(data.evaluation[0]["input_ids"].tolist()) == {ord("b")}


@pytest.mark.parametrize(
    ("packing", "expected"),
    [
        ("none", [[97] * 8, [97, 97, END], [100] * 5 + [END], [99, 99, END], [98, END]]),
        ("sequential", [[97] * 8, [97, 97, END], [100] * 5 + [END], [99, 99, END, 98, END]]),
        ("best_fit", [[97] * 8, [97, 97, END, 99, 99, END, 98, END], [100] * 5 + [END]]),
    ],
)
def test_documents_by_themselves_or_packed(tmp_path: Path, packing: str, expected: list[list[int]]) -> None:
    texts = ["a" * 10, "d" * 5, "cc", "", "b"]
    file = write(tmp_path / "t.jsonl", [{"text": text} for text in texts])
    other = write(tmp_path / "v.jsonl", [{"text": "e"}])
    data = load(file, validation_file=str(other), packing=packing)
    assert tokens(data.train) == expected
    assert data.tokens_per_row == sum(map(len, expected)) / len(expected)
    batch = data.collator([data.train[0], data.train[1]])
    assert ("position_ids" in batch) == (packing != "none") == ("attention_mask" not in batch)


def test_records_are_split_before_they_are_packed(tmp_path: Path) -> None:
    records = [{"prompt": letter, "completion": letter} for letter in "abcdefgh"]
    file = write(tmp_path / "t.jsonl", [*records, {"prompt": "x" * 9, "completion": "y"}])
    data = load(file, task="sft", packing="sequential", pad_to_multiple_of=8)
    assert tokens(data.train) == [[n, n, END, n + 1, n + 1, END] for n in (97, 99, 101)]
    assert tokens(data.evaluation) == [[103, 103, END, 104, 104, END]]
    assert data.tokens_per_byte is None
    assert data.notes == (
        "1 of the 9 records of --train_file had no answer within their first 8 tokens and were left out",
    )
    batch = data.collator([data.train[0]])
    assert batch["input_ids"].shape == (1, 8)
    ignored = -100
    assert batch["labels"].tolist() == [[ignored, 97, END, ignored, 98, END, ignored, ignored]]


def test_notes_name_the_file_that_they_are_about(tmp_path: Path) -> None:
    long = [{"prompt": "a", "completion": "b" * 20}] * 2
    files = [str(write(tmp_path / name, long)) for name in ("t.jsonl", "v.jsonl")]
    data = load(Path(files[0]), task="sft", validation_file=files[1])
    assert [note.split(" of ")[2].split()[0] for note in data.notes] == ["--train_file", "--validation_file"]


@pytest.mark.parametrize(
    ("content", "changes", "message"),
    [
        ("one line", {}, r"makes 1 sequence\(s\), but one to train on and one to evaluate on are needed"),
        ("short", {}, "--train_file is shorter than one sequence of 8 tokens; .* lower --block_size"),
        ("", {"packing": "none"}, "is empty"),
        ('{"text": "a"}', {"task": "sft"}, r"makes 1 sequence\(s\), .* or name a --validation_file"),
        ("", {"task": "sft"}, "is empty; give a file with text"),
    ],
)
def test_too_little_is_refused(tmp_path: Path, content: str, changes: dict[str, str], message: str) -> None:
    file = tmp_path / ("t.jsonl" if "task" in changes else "t.txt")
    file.write_text(content, encoding="utf-8")
    with pytest.raises(TrainingInputError, match=message):
        load(file, **changes)


def test_short_validation_file_is_refused_by_name(tmp_path: Path) -> None:
    train, validation = tmp_path / "t.txt", tmp_path / "v.txt"
    train.write_text("a" * 40, encoding="utf-8")
    validation.write_text("b", encoding="utf-8")
    message = "--validation_file is shorter than one sequence of 8 tokens"
    with pytest.raises(TrainingInputError, match=message):
        load(train, validation_file=str(validation))


def test_padding_token() -> None:
    tokenizer = chat_tokenizer()
    assert padding_id(tokenizer) == 256
    tokenizer.pad_token = None
    assert padding_id(tokenizer) == tokenizer.eos_token_id
    tokenizer.eos_token = None
    assert padding_id(tokenizer) == 0


def test_order_of_records_is_the_same_each_time(tmp_path: Path) -> None:
    records = [{"text": "x" * (1 + n * 7 % 5)} for n in range(20)]
    file = write(tmp_path / "t.jsonl", records)
    once, again = (load(file, task="sft", packing="best_fit") for _ in range(2))
    assert tokens(once.train) == tokens(again.train)
    assert torch.equal(once.train[0]["labels"], again.train[0]["labels"])
