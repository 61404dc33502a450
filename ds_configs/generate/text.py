"""Configurations as JSON text for people: large whole floats as 2e8, lists on one line."""

from __future__ import annotations

import json
from typing import Any

INDENT = 2
LARGE = 1e5


def to_text(config: Any) -> str:
    """Return ``config`` as JSON with a newline at the end; reading it gives ``config`` back, types included.

    Raises:
        ValueError: a number is infinite or none.
    """
    return _render(config, 0) + "\n"


def _render(value: Any, depth: int) -> str:
    if isinstance(value, dict) and value:
        inner = " " * INDENT * (depth + 1)
        lines = [f"{inner}{json.dumps(key)}: {_render(each, depth + 1)}" for key, each in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + " " * INDENT * depth + "}"
    if isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value):
        inner = " " * INDENT * (depth + 1)
        lines = [inner + _render(each, depth + 1) for each in value]
        return "[\n" + ",\n".join(lines) + "\n" + " " * INDENT * depth + "]"
    if isinstance(value, list):
        return "[" + ", ".join(_render(each, depth) for each in value) + "]"
    if isinstance(value, float) and value.is_integer() and abs(value) >= LARGE:
        return _scientific(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _scientific(value: float) -> str:
    """Return 200000000.0 as 2e8: a float stays a float."""
    mantissa, exponent = f"{value:.17e}".split("e")
    for digits in range(17):
        mantissa, exponent = f"{value:.{digits}e}".split("e")
        if float(f"{mantissa}e{exponent}") == value:
            break
    return f"{mantissa}e{int(exponent)}"
