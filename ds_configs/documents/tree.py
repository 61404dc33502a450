"""A JSON value as a tree in which every key and value knows its place.

Only text that ``json.loads`` has accepted comes here, so that reading it needs no care for errors. (Of the
libraries that keep places, tree-sitter-json does not know 1e+9, and the others are not kept up.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

TOKEN = re.compile(r"""[ \t\r\n]*("(?:[^"\\]|\\.)*"|[{}\[\],:]|[^ \t\r\n{}\[\],:"]+)""", re.DOTALL)
KINDS = {'"': "str", "t": "bool", "f": "bool", "n": "null"}


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
        index = self.index(key)
        return None if index is None else self.members[index]

    def index(self, key: str) -> int | None:
        """Return the place of ``member(key)`` among ``members``, or None."""
        return self._places.get(key)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {member.key: index for index, member in enumerate(self.members)}

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

    def nodes(self) -> Iterator[Node]:
        """Yield this value and every value within it."""
        yield self
        for member in self.members:
            yield from member.node.nodes()
        for item in self.items:
            yield from item.nodes()


@dataclass(frozen=True)
class Member:
    """One key of an object with its value; ``start`` and ``end`` are the key's place, quotes included."""

    key: str
    start: int
    end: int
    node: Node


def build_tree(text: str, start_of: Callable[[int], int], end_of: Callable[[int], int]) -> Node:
    """Read strict JSON whose nesting Python's stack bears.

    Args:
        text: what ``json.loads`` accepts.
        start_of: takes an offset at which a value of ``text`` starts to where that is in the user's file.
        end_of: the same for ends.
    """
    return _Builder(text, start_of, end_of).value()


@dataclass
class _Builder:
    """Reads the tokens one after the other; ``at`` is where the next one is looked for."""

    text: str
    start_of: Callable[[int], int]
    end_of: Callable[[int], int]
    at: int = 0

    def value(self) -> Node:
        token, start, end = self.next()
        if token == "{":
            members = tuple(self.members())
            value = {member.key: member.node.value for member in members}
            return Node("object", value, start, self.end_of(self.at), members=members)
        if token == "[":
            items = tuple(self.items())
            return Node("list", [item.value for item in items], start, self.end_of(self.at), items=items)
        return Node(KINDS.get(token[0], "number"), json.loads(token), start, end)

    def members(self) -> Iterator[Member]:
        while self.peek() != "}":
            key, start, end = self.next()
            self.next()  # the colon
            yield Member(json.loads(key), start, end, self.value())
            if self.peek() == ",":
                self.next()
        self.next()

    def items(self) -> Iterator[Node]:
        while self.peek() != "]":
            yield self.value()
            if self.peek() == ",":
                self.next()
        self.next()

    def peek(self) -> str:
        return self.match().group(1)

    def next(self) -> tuple[str, int, int]:
        match = self.match()
        self.at = match.end()
        return match.group(1), self.start_of(match.start(1)), self.end_of(match.end(1))

    def match(self) -> re.Match[str]:
        found = TOKEN.match(self.text, self.at)
        assert found, "json.loads accepted text that has no next token"
        return found
