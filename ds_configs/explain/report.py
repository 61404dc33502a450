"""Explanations as text for a terminal, a paragraph a key, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Sequence

from ds_configs.explain.explanation import Explanation
from ds_configs.schema import LATEST
from ds_configs.schema.key import shown, spelt


def as_json(explanations: Sequence[Explanation]) -> str:
    """Return the explanations as a JSON list, a file's fields left out where no file was read."""
    return json.dumps([_fields(one) for one in explanations], indent=2, ensure_ascii=False)


def as_text(explanations: Sequence[Explanation], width: int) -> str:
    """Return the explanations wrapped at ``width`` characters, an empty line between two."""
    return "\n\n".join(_text(one, width) for one in explanations)


def _fields(one: Explanation) -> dict[str, object]:
    fields = dataclasses.asdict(one)
    if not one.is_set:
        for name in ("value", "line"):
            del fields[name]
    return fields


def _text(one: Explanation, width: int) -> str:
    head = one.key if one.known else ".".join(map(spelt, one.key.split(".")))
    if one.is_set:
        head += " = {...}" if isinstance(one.value, dict) else f" = {shown(one.value)}"
    if one.known and not one.removed:
        head += f"   [{one.type}{f'; default: {one.default}' if one.default else ''}]"
    if one.line is not None:
        head += f"   line {one.line}"
    notes = [_wrapped(note, width, "! ") for note in one.notes]
    return "\n".join([head, *notes, *([_wrapped(_paragraph(one), width, "")] if one.known else [])])


def _wrapped(text: str, width: int, mark: str) -> str:
    indent = "  " + " " * len(mark)
    return textwrap.fill(
        text, width, initial_indent=f"  {mark}", subsequent_indent=indent, break_on_hyphens=False
    )


def _paragraph(one: Explanation) -> str:
    said = [one.does]
    if one.keys:
        said.append(f"Keys in it: {', '.join(one.keys)}.")
    if one.unit:
        said.append(f"Unit: {one.unit}.")
    if one.memory or one.communication:
        said.append(f"Memory: {one.memory or 'no effect'}.")
        said.append(f"Communication: {one.communication or 'no effect'}.")
    elif not one.removed:
        said.append("No effect on memory or communication.")
    said.append(f"{'Instead' if one.removed else 'When to change it'}: {one.change}")
    if one.ascend:
        said.append(f"On Ascend: {one.ascend}")
    if one.history:
        said.append(one.history)
    if one.source:
        said.append(f"(DeepSpeed {LATEST}, {one.source.partition(':')[0]})")
    return " ".join(said)
