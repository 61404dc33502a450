"""pydantic's lax mode, which DeepSpeed's models use: what converts to a key's types, and what does not.

Source: the documentation of pydantic 2, "Conversion Table", lax mode; checked value by value
against pydantic itself by tests/ds_configs/schema/test_verdicts.py.
"""

from __future__ import annotations

import math
import re

from ds_configs.schema.key import Json, Key, json_type, shown

TRUE_WORDS = {"1", "on", "t", "true", "y", "yes"}
FALSE_WORDS = {"0", "off", "f", "false", "n", "no"}
# Whole numbers in a string, such as " 8", "+8", "1_000" and "8.0".
INT_TEXT = re.compile(r"[+-]?[0-9]+(_[0-9]+)*(\.0+)?")
FLOAT_TEXT = re.compile(r"[+-]?(([0-9]+(_[0-9]+)*)?\.?([0-9]+(_[0-9]+)*)?)([eE][+-]?[0-9]+)?")
WORDS_OF_FLOAT = {"inf", "infinity", "nan"}
# A float beyond this is refused for an int, an int is not.
LARGEST_FLOAT_FOR_INT = 2.0**63
WHAT = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "list": "a list",
    "object": "an object",
    "null": "null",
}


def lax_refusal(key: Key, value: Json) -> str:
    """Return why pydantic refuses ``value`` for ``key``, "" when it takes it.

    Objects are looked at from outside only. "auto" is not special here: DeepSpeed's models drop such keys
    before pydantic sees them, which ``Schema.refusals`` does as well.
    """
    converted = [_convert(name, value) for name in _strictest_first(key.types, value)]
    taken = next((item for item in converted if item is not FAILED), FAILED)
    if taken is FAILED:
        wanted = " or ".join(WHAT[name] for name in key.types) or "left out: no JSON value fits"
        return f"must be {wanted}, not {shown(value)}"
    return _outside(key, taken, value) or _bad_items(key, taken)


FAILED = object()


def _strictest_first(types: tuple[str, ...], value: Json) -> list[str]:
    """The value's own type first, as pydantic's smart union has it."""
    own = json_type(value)
    return sorted(types, key=lambda name: name != own)


def _convert(name: str, value: Json) -> Json:
    """Return ``value`` as pydantic makes it, FAILED when it refuses."""
    own = json_type(value)
    if name == own:
        return value
    if name == "bool":
        return _as_bool(value)
    if name == "int":
        return _as_int(value)
    if name == "float":
        return _as_float(value)
    return FAILED


def truth_of(value: Json) -> bool | None:
    """Return the truth value that pydantic converts ``value`` to, None where it refuses."""
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in TRUE_WORDS | FALSE_WORDS:
        return value.lower() in TRUE_WORDS
    return None


def _as_bool(value: Json) -> Json:
    truth = truth_of(value)
    return FAILED if truth is None else truth


def _as_int(value: Json) -> Json:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value) and value.is_integer() and abs(value) < LARGEST_FLOAT_FOR_INT:
            return int(value)
        return FAILED
    if isinstance(value, str):
        text = value.strip()
        return int(float(text)) if INT_TEXT.fullmatch(text) else FAILED
    return FAILED


def _as_float(value: Json) -> Json:
    if isinstance(value, int):  # bool too
        return float(value)
    if isinstance(value, str):
        text = value.strip()
        if text.lstrip("+-").lower() in WORDS_OF_FLOAT:
            return float(text)
        if FLOAT_TEXT.fullmatch(text) and any(letter.isdigit() for letter in re.split("[eE]", text)[0]):
            return float(text)
    return FAILED


def _outside(key: Key, taken: Json, value: Json) -> str:
    """Limits and choices, after conversion."""
    if isinstance(taken, int | float) and not isinstance(taken, bool):
        low, high = key.minimum, key.maximum
        if low is not None and not (taken > low if key.open_minimum else taken >= low):
            return f"must be {'greater than' if key.open_minimum else 'at least'} {low:g}, not {shown(value)}"
        if high is not None and not (taken < high if key.open_maximum else taken <= high):
            return f"must be {'less than' if key.open_maximum else 'at most'} {high:g}, not {shown(value)}"
    bound = {json_type(choice) for choice in key.choices}
    if json_type(taken) in bound and taken not in key.choices:
        return f"must be one of {', '.join(map(shown, key.choices))}, not {shown(value)}"
    return ""


def _bad_items(key: Key, taken: Json) -> str:
    if not isinstance(taken, list) or not key.items:
        return ""
    for item in taken:
        if all(_convert(name, item) is FAILED for name in key.items):
            return f"must hold {' or '.join(WHAT[name] for name in key.items)} only, not {shown(item)}"
        if key.item_choices and item not in key.item_choices:
            return f"must hold only {', '.join(map(shown, key.item_choices))}, not {shown(item)}"
    return ""
