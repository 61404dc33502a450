"""Finds out whether the DeepSpeed package ever reads what its configuration parser stores."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# Parsers and constants: a mention there is no reading.
PARSERS = ("config.py", "constants.py")


def reads_attribute(package: Path, attribute: str, through: str = "") -> bool:
    """Whether any code of ``package`` uses ``.attribute`` outside the configuration parsers.

    ``through`` names a method that does nothing but return it: then only a call of that method counts.
    """
    wanted = through or attribute
    return any(_loads(node, wanted) for node in _nodes(package, wanted))


def reads_item(package: Path, item: str, above: str) -> bool:
    """Whether any code of ``package`` looks ``item`` up in something that ends in ``.above``."""
    return any(_looks_up(node, item, above) for node in _nodes(package, item))


def _nodes(package: Path, word: str) -> Iterator[ast.AST]:
    """Every node of the files that mention ``word`` at all: parsing them all takes long."""
    for text in _texts(package).values():
        if word in text:
            yield from ast.walk(ast.parse(text))


@cache
def _texts(package: Path) -> dict[Path, str]:
    files = [file for file in package.rglob("*.py") if "inference" not in file.parts]
    return {
        file: file.read_text(encoding="utf-8", errors="ignore") for file in files if file.name not in PARSERS
    }


def _loads(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name and isinstance(node.ctx, ast.Load)
    is_getattr = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"
    return (
        is_getattr and isinstance(node, ast.Call) and any(_is(argument, name) for argument in node.args[1:2])
    )


def _looks_up(node: ast.AST, item: str, above: str) -> bool:
    if isinstance(node, ast.Subscript):
        return _ends_in(node.value, above) and _is(node.slice, item)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return _ends_in(node.func.value, above) and any(_is(argument, item) for argument in node.args[:1])
    return False


def _ends_in(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name


def _is(node: ast.AST, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text
