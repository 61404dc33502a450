"""Which "auto" HF and accelerate fill, and which values they compare."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ds_configs.lint.context import AUTO

TABLE = Path(__file__).parent.parent / "hf.json"


@cache
def _table() -> dict[str, Any]:
    return json.loads(TABLE.read_text(encoding="utf-8"))


@cache
def filled() -> frozenset[tuple[str, ...]]:
    """Return the keys whose "auto" HF or accelerate replaces."""
    return frozenset(tuple(name.split(".")) for name in _table()["filled"])


@cache
def compared() -> Mapping[tuple[str, ...], str]:
    """Return the keys whose fixed value HF compares with a flag, and the flag."""
    return {tuple(name.split(".")): flag for name, flag in _table()["compared"].items()}


@cache
def containers() -> tuple[tuple[str, ...], ...]:
    """Return the keys below which HF or accelerate look for others, so that they must be objects."""
    return tuple(tuple(name.split(".")) for name in _table()["containers"])


def autos(value: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key whose value is "auto"; lists are not entered, as HF does not enter them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if inner == AUTO:
                yield (*above, key)
            yield from autos(inner, (*above, key))


def is_for_hf(value: Any) -> bool:
    """Whether a configuration holds an "auto" that HF fills, and so is meant for HF."""
    return any(path in filled() for path in autos(value))
