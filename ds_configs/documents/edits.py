"""Edits of keys and values that leave order, comments and layout of the rest alone."""

from __future__ import annotations

import json
import re
from typing import Any

from ds_configs.documents import scan
from ds_configs.documents.text import Edit
from ds_configs.documents.tree import Member, Node


def rename_key(member: Member, name: str) -> tuple[Edit, ...]:
    """Return the edit that calls ``member`` ``name``."""
    return (Edit(member.start, member.end, json.dumps(name, ensure_ascii=False)),)


def replace_value(node: Node, value: Any) -> tuple[Edit, ...]:
    """Return the edit that puts ``value`` in the place of ``node``."""
    return (Edit(node.start, node.end, json.dumps(value, ensure_ascii=False)),)


def delete_member(text: str, node: Node, index: int) -> tuple[Edit, ...]:
    """Return the edits that take member ``index`` out of the object ``node``, with its comma and its line."""
    member = node.members[index]
    comma = _comma_after(text, member.node.end)
    if comma is not None:
        return (_with_line(text, member.start, comma + 1),)
    if index == 0:
        return (Edit(member.start, member.node.end, ""),)
    before = _comma_after(text, node.members[index - 1].node.end)
    start = node.members[index - 1].node.end if before is None else before
    if text[start + 1 : member.start].strip():  # a comment stands between: leave it
        return (Edit(start, start + 1, ""), Edit(member.start, member.node.end, ""))
    return (Edit(start, member.node.end, ""),)


def insert_member(text: str, node: Node, name: str, value: Any) -> tuple[Edit, ...]:
    """Return the edit that adds ``name`` as the last member of the object ``node``."""
    written = f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
    if not node.members:
        return (Edit(node.start + 1, node.start + 1, written),)
    last = node.members[-1]
    comma = _comma_after(text, last.node.end)
    start = _line_start(text, last.start)
    gap = text[start - len(_line_end(text, start)) : last.start] if start else " "
    if comma is None:
        return (Edit(last.node.end, last.node.end, f",{gap}{written}"),)
    return (Edit(comma + 1, comma + 1, f"{gap}{written}"),)


def _comma_after(text: str, at: int) -> int | None:
    """Return where the comma is that follows ``at`` past blanks and comments, or None."""
    while True:
        passed = scan.BLANK.match(text, at) or scan.COMMENT.match(text, at)
        if not passed:
            return at if text[at : at + 1] == "," else None
        at = passed.end()


def _with_line(text: str, start: int, end: int) -> Edit:
    """Return the deletion of a range, with the blanks around it that would be left."""
    after = re.compile(r"[ \t]*(\r\n|\r|\n)?").match(text, end)
    line_start = _line_start(text, start)
    if after and after.group(1) and line_start is not None:
        return Edit(line_start, after.end(), "")
    return Edit(start, after.end() if after and not after.group(1) else end, "")


def _line_start(text: str, at: int) -> int | None:
    """Return where the line of ``at`` starts if only blanks stand before ``at`` on it, else None."""
    while at and text[at - 1] in " \t":
        at -= 1
    return at if not at or text[at - 1] in "\r\n" else None


def _line_end(text: str, start: int) -> str:
    """Return the characters that end the line before the one that starts at ``start``."""
    return "\r\n" if text[start - 2 : start] == "\r\n" else text[start - 1 : start]
