"""The kinds of record that supervised fine-tuning reads, one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hf_integration.errors import TrainingInputError


@dataclass(frozen=True)
class Conversation:
    """Messages with a ``role`` and a ``content``; what the assistant says is learnt.

    Attributes:
        messages: as the chat template takes them; other fields, such as ``tool_calls``, reach it too.
        tools: descriptions of functions for the template, from the record's ``tools``.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None


@dataclass(frozen=True)
class Completion:
    """A text of which the second part is learnt; all of it where ``prompt`` is empty."""

    prompt: str
    completion: str


def parse_record(line: str, text_column: str) -> Conversation | Completion:
    """Return the record in ``line``: ``messages``, ``prompt`` with ``completion``, or ``text_column``.

    Fields of other names, such as an id, are no part of the text.

    Raises:
        TrainingInputError: it is none of them, or two; the message is to follow the place of the line.
    """
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise TrainingInputError(f"is no JSON ({error}); write one whole record a line") from error
    if not isinstance(record, dict):
        raise TrainingInputError(f"holds a {type(record).__name__}, not an object; write one record a line")
    # A field that is null counts as absent: writers of tables fill up with it.
    fields = {name for name, value in record.items() if value is not None}
    kinds = [name for name in dict.fromkeys(("messages", "prompt", text_column)) if name in fields]
    if len(kinds) != 1:
        found = f"both {' and '.join(kinds)}" if kinds else f"only {', '.join(record) or 'nothing'}"
        raise TrainingInputError(
            f'has {found}; a record has one of "messages", "prompt" with "completion", or the field that '
            f"--text_column names ({text_column!r})"
        )
    if kinds == [text_column]:
        return Completion("", text_of(record, text_column))
    if kinds == ["messages"]:
        return conversation(record["messages"], record.get("tools"))
    return Completion(text_of(record, "prompt"), text_of(record, "completion"))


def text_of(record: dict[str, Any], name: str) -> str:
    """Return the text in field ``name``.

    Raises:
        TrainingInputError: the field is missing or holds something else.
    """
    value = record.get(name)
    if not isinstance(value, str):
        mend = 'put messages into a "messages" field' if isinstance(value, list) else "give a text"
        raise TrainingInputError(f"has {describe(value)} in {name!r}; {mend}")
    return value


def conversation(messages: Any, tools: Any) -> Conversation:
    """Return ``messages`` and ``tools`` of a record, checked as far as every template needs it.

    Raises:
        TrainingInputError: the messages are no list of objects with a role, or ``tools`` is no list.
    """
    if not isinstance(messages, list) or not messages:
        raise TrainingInputError(f'has {describe(messages)} in "messages"; give a list of one or more')
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TrainingInputError(
                f'has {describe(message)} as message {number}; give {{"role": …, "content": …}}'
            )
        if not isinstance(message.get("content"), (str, list)) and not message.get("tool_calls"):
            raise TrainingInputError(
                f"has {describe(message.get('content'))} as content of message {number}; give a text"
            )
    if tools is not None and not isinstance(tools, list):
        raise TrainingInputError(f'has {describe(tools)} in "tools"; give a list of function descriptions')
    return Conversation(messages, tools)


def describe(value: Any) -> str:
    """Return what ``value``, read from JSON, is, short enough for a message."""
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
