"""A JSON value as a tree in which every key and value knows its place; tree-sitter parses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tree_sitter
import tree_sitter_json

SCALARS = {"string": "str", "number": "number", "true": "bool", "false": "bool", "null": "null"}


@dataclass(frozen=True)
class Node:
    """One value: ``value`` is what ``json.loads`` makes of it, ``start`` and ``end`` are its place."""

    kind: str
    """"object", "list", "str", "number", "bool" or "null"."""
    value: Any
    start: int
    end: int
    members: tuple[Member, ...] = ()
    """Of an object, in order, keys that come twice included."""
    items: tuple[Node, ...] = ()
    """Of a list."""

    def member(self, key: str) -> Member | None:
        """Return the member called ``key``, the last one if there are several, as JSON readers do."""
        found = [member for member in self.members if member.key == key]
        return found[-1] if found else None

    def find(self, path: tuple[str, ...]) -> Member | None:
        """Return the member at ``path`` below this object, or None."""
        member = self.member(path[0]) if path else None
        if member is None or len(path) == 1:
            return member
        return member.node.find(path[1:])

    def walk(self, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Member]]:
        """Yield path and member of every key below this value, in the file's order."""
        for member in self.members:
            path = (*above, member.key)
            yield path, member
            yield from member.node.walk(path)
        for index, item in enumerate(self.items):
            yield from item.walk((*above, str(index)))


@dataclass(frozen=True)
class Member:
    """One key of an object with its value; ``start`` and ``end`` are the key's place, quotes included."""

    key: str
    start: int
    end: int
    node: Node


def build_tree(text: str, start_of: Callable[[int], int], end_of: Callable[[int], int]) -> Node:
    """Parse strict JSON.

    Args:
        text: what ``json.loads`` accepts.
        start_of: takes an offset at which a value of ``text`` starts to where that is in the user's file.
        end_of: the same for ends.
    """
    data = text.encode("utf-8", "surrogatepass")
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_json.language()))
    return _Builder(data, _characters(text, data), start_of, end_of).root(parser.parse(data).root_node)


def _characters(text: str, data: bytes) -> Callable[[int], int]:
    """Return what turns byte offsets of ``data`` into character offsets of ``text``."""
    if len(text) == len(data):
        return int
    offsets = [0] * (len(data) + 1)
    at = 0
    for index, char in enumerate(text):
        width = len(char.encode("utf-8", "surrogatepass"))
        offsets[at : at + width] = [index] * width
        at += width
    offsets[at] = len(text)
    return offsets.__getitem__


@dataclass(frozen=True)
class _Builder:
    data: bytes
    character: Callable[[int], int]
    start_of: Callable[[int], int]
    end_of: Callable[[int], int]

    def root(self, document: tree_sitter.Node) -> Node:
        return self.node(document.named_children[0])

    def node(self, node: tree_sitter.Node) -> Node:
        start, end = self.place(node)
        if node.type == "object":
            members = tuple(self.member(child) for child in node.named_children)
            value: Any = {member.key: member.node.value for member in members}
            return Node("object", value, start, end, members=members)
        if node.type == "array":
            items = tuple(self.node(child) for child in node.named_children)
            return Node("list", [item.value for item in items], start, end, items=items)
        return Node(SCALARS[node.type], self.scalar(node), start, end)

    def member(self, pair: tree_sitter.Node) -> Member:
        key, value = pair.named_children
        start, end = self.place(key)
        return Member(self.scalar(key), start, end, self.node(value))

    def scalar(self, node: tree_sitter.Node) -> Any:
        return json.loads(self.data[node.start_byte : node.end_byte].decode("utf-8", "surrogatepass"))

    def place(self, node: tree_sitter.Node) -> tuple[int, int]:
        return self.start_of(self.character(node.start_byte)), self.end_of(self.character(node.end_byte))
