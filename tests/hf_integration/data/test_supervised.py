"""Records as sequences whose labels are the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hf_integration.byte_tokenizer import build_byte_tokenizer
from hf_integration.data.files import read_json_lines
from hf_integration.data.supervised import Encoder, LongSequences, Supervised, encode_records
from hf_integration.errors import TrainingInputError
from tests.hf_integration.data.conftest import CHATML, MARKED, chat_tokenizer

END = 256


def encode(
    folder: Path,
    records: list[Any],
    *,
    limit: int = 100,
    long_sequences: LongSequences = "cut",
    tokenizer: Any = None,
) -> Supervised:
    """Write ``records`` into a file and return them encoded."""
    file = folder / "records.jsonl"
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    file.write_text("\n".join(lines), encoding="utf-8")
    found = read_json_lines(file)
    encoder = Encoder(tokenizer or build_byte_tokenizer(), limit, long_sequences, "text", found.places)
    return encode_records(found.lines, encoder, "--train_file")


def rows(encoded: Supervised) -> list[tuple[list[int], list[int]]]:
    """Return token ids and labels of each sequence."""
    items = [encoded.sequences[i] for i in range(len(encoded.sequences))]
    return [(item["input_ids"].tolist(), item["labels"].tolist()) for item in items]


def pair(prompt: str, completion: str) -> dict[str, str]:
    """Return a record."""
    return {"prompt": prompt, "completion": completion}


def test_labels_are_the_answers_and_nothing_else(tmp_path: Path) -> None:
    encoded = encode(tmp_path, [pair("ab", "c"), "", {"text": "de"}])
    assert rows(encoded) == [
        ([97, 98, 99, END], [-100, -100, 99, END]),
        ([100, 101, END], [100, 101, END]),
    ]
    assert encoded.notes == ()


def test_records_of_every_kind_stand_in_one_file(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    messages = [{"role": "user", "content": "a", "name": "x"}, {"role": "assistant", "content": "b"}]
    encoded = encode(tmp_path, [{"messages": messages}, pair("a", "b")], tokenizer=tokenizer)
    (talk, labels), completion = rows(encoded)
    assert tokenizer.decode(talk) == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
    assert [token for token in labels if token != -100] == [98, tokenizer.eos_token_id]
    assert completion == ([97, 98, tokenizer.eos_token_id], [-100, 98, tokenizer.eos_token_id])


def test_long_records_are_cut_dropped_or_refused(tmp_path: Path) -> None:
    records = [pair("ab", "cdef"), pair("a", "b"), pair("abcdef", "g")]
    cut = encode(tmp_path, records, limit=4)
    assert rows(cut) == [([97, 98, 99, 100], [-100, -100, 99, 100]), ([97, 98, END], [-100, 98, END])]
    assert cut.notes == (
        "1 of the 3 records of --train_file were longer than 4 tokens and lost their end",
        "1 of the 3 records of --train_file had no answer within their first 4 tokens and were left out",
    )
    dropped = encode(tmp_path, records, limit=4, long_sequences="drop")
    assert rows(dropped) == rows(cut)[1:]
    assert dropped.notes == ("2 of the 3 records of --train_file were longer than 4 tokens and left out",)
    with pytest.raises(TrainingInputError, match=r"line 1 of .*records.jsonl has 7 tokens, more than the 4"):
        encode(tmp_path, records, limit=4, long_sequences="refuse")


def test_answer_of_which_nothing_can_be_predicted_is_none(tmp_path: Path) -> None:
    encoded = encode(tmp_path, [{"text": ""}, {"text": "a"}])
    assert rows(encoded) == [([97, END], [97, END])]
    assert encoded.notes[0].startswith("1 of the 2 records of --train_file had no answer")


def test_nothing_left_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingInputError, match="no record to train on: 1 of the 1 records .* no answer"):
        encode(tmp_path, [pair("abcdef", "g")], limit=4)
    with pytest.raises(TrainingInputError, match="--train_file has no record to train on; give records"):
        encode(tmp_path, ["", " "])


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "line 2 of .*records.jsonl is no JSON"),
        ({"messages": [{"role": "user", "content": "a"}]}, 'line 2 of .* "messages" need a chat template'),
    ],
)
def test_refused_record_is_named_by_its_line(tmp_path: Path, record: Any, message: str) -> None:
    with pytest.raises(TrainingInputError, match=message):
        encode(tmp_path, [pair("a", "b"), record])


def test_cache_does_not_outlive_the_template(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    tokenizer = chat_tokenizer(CHATML)
    first = rows(encode(tmp_path, [{"messages": messages}], tokenizer=tokenizer))
    again = rows(encode(tmp_path, [{"messages": messages}], tokenizer=tokenizer))
    tokenizer.chat_template = MARKED.replace("assistant\n", "helper\n")
    other = rows(encode(tmp_path, [{"messages": messages}], tokenizer=tokenizer))
    tokenizer.chat_template = "{{ '!' }}" + CHATML
    last = rows(encode(tmp_path, [{"messages": messages}], tokenizer=tokenizer))
    assert first == again == other
    assert last[0][0] == [ord("!"), *first[0][0]]
