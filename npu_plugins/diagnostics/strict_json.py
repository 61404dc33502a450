"""JSON that every reader takes: RFC 8259 knows no nan and no infinity, which Python's json writes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def strict_json(value: Any, *, indent: int | None = 1, ensure_ascii: bool = True) -> str:
    """Return `value` as JSON, with the strings "NaN", "Infinity" and "-Infinity" for floats that are none.

    Python's float() and JavaScript's Number() read these strings.

    Args:
        value: of what json.dumps takes.
        indent: as of json.dumps.
        ensure_ascii: as of json.dumps.
    """
    return json.dumps(_finite(value), indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value
