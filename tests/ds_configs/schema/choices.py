"""The choices of hand-read keys, from the constants that DeepSpeed compares them with."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any


def current_choices(described: list[Any], where: str, package: Path) -> list[Any]:
    """Return the choices as described while they are DeepSpeed's, whatever the case, else DeepSpeed's.

    ``where`` is "module:NAME", or "file.py:name" for a name that a function assigns a literal to.
    """
    place, _, name = where.partition(":")
    found = _assigned(package / place, name) if place.endswith(".py") else _constant(place, name)
    names = [choice for choice in found if isinstance(choice, str)]
    if {choice.lower() for choice in names} == {str(choice).lower() for choice in described}:
        return described
    return names


def _constant(module: str, name: str) -> Iterable[Any]:
    value: Any = import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _assigned(file: Path, name: str) -> Iterable[Any]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Name) and one.id == name for one in node.targets
        ):
            return ast.literal_eval(node.value)
    raise LookupError(f"{file.name} assigns nothing to {name}")
