"""The records that supervised fine-tuning reads, and those it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hf_integration.data.records import Completion, Conversation, parse_record
from hf_integration.errors import TrainingInputError

TURN = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"messages": [TURN], "id": 3}, Conversation([TURN])),
        ({"messages": [TURN], "tools": [{"name": "f"}]}, Conversation([TURN], [{"name": "f"}])),
        ({"messages": [TURN], "prompt": None, "completion": None}, Conversation([TURN])),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [1]}]},
            Conversation([{"role": "assistant", "content": None, "tool_calls": [1]}]),
        ),
        ({"prompt": "a", "completion": "b"}, Completion("a", "b")),
        ({"body": "a"}, Completion("", "a")),
    ],
)
def test_three_kinds_of_record(record: dict[str, Any], expected: Conversation | Completion) -> None:
    assert parse_record(json.dumps(record), "body") == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is no JSON .*write one whole record a line"),
        ("[]", "holds a list, not an object"),
        ("{}", "has only nothing; a record has one of"),
        ('{"text": "a"}', r"has only text; .* --text_column names \('body'\)"),
        ('{"prompt": "a", "body": "b"}', "has both prompt and body; a record has one of"),
        ('{"prompt": "a"}', "has nothing in 'completion'; give a text"),
        ('{"prompt": [{"role": "user"}], "completion": "b"}', 'put messages into a "messages" field'),
        ('{"body": 3}', "has 3 in 'body'; give a text"),
        ('{"messages": []}', r'has \[\] in "messages"; give a list of one or more'),
        ('{"messages": "a"}', 'has "a" in "messages"'),
        ('{"messages": [{"content": "a"}]}', "as message 1; give"),
        ('{"messages": [{"role": "user", "content": 3}]}', "has 3 as content of message 1; give a text"),
        ('{"messages": [{"role": "user", "content": "a"}], "tools": {}}', 'has {} in "tools"'),
    ],
)
def test_others_are_refused(line: str, message: str) -> None:
    with pytest.raises(TrainingInputError, match=message):
        parse_record(line, "body")


def test_text_column_goes_before_the_names_of_other_kinds() -> None:
    assert parse_record('{"prompt": "a", "other": "b"}', "prompt") == Completion("", "a")


def test_long_values_are_shortened_in_messages() -> None:
    with pytest.raises(TrainingInputError) as caught:
        parse_record(json.dumps({"messages": "x" * 500}), "text")
    assert len(str(caught.value)) < 200
