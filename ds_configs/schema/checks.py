"""How DeepSpeed's parser looks at one value: each rule says why a value is refused, or nothing.

The rules follow what DeepSpeedConfig does rather than what it should do, so that a verdict here equals the
verdict there: tests/ds_configs/schema/test_verdicts.py draws keys and values at random and compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ds_configs.schema.key import Json, Key, shown
from ds_configs.schema.lax import lax_refusal

Rule = Callable[[Key, Json], str]


def refusal_of_value(key: Key, value: Json) -> str:
    """Return why DeepSpeed's parser refuses ``value`` for ``key``, "" when it takes it.

    Objects are looked at from outside only; ``Schema.refusals`` goes into them.
    """
    return CHECKS[key.check](key, value)


def _nothing(key: Key, value: Json) -> str:
    return ""


def _number(key: Key, value: Json) -> str:
    return "" if isinstance(value, int | float) else f"must be a number, not {shown(value)}"


def _positive(key: Key, value: Json) -> str:
    """Batch sizes: multiplied, then compared with 0."""
    if value is None:
        return ""
    refused = _number(key, value)
    if refused:
        return refused
    return "" if value > 0 else f"must be greater than 0, not {shown(value)}"


def _folded_choice(key: Key, value: Json) -> str:
    if isinstance(value, str) and value.lower() in {str(choice).lower() for choice in key.choices}:
        return ""
    return _not_a_choice(key, value)


def _folded_choice_or_null(key: Key, value: Json) -> str:
    return "" if value is None else _folded_choice(key, value)


def _choice(key: Key, value: Json) -> str:
    return "" if value in key.choices else _not_a_choice(key, value)


def _not_a_choice(key: Key, value: Json) -> str:
    return f"must be one of {', '.join(map(shown, key.choices))}, not {shown(value)}"


def _object(key: Key, value: Json) -> str:
    return "" if isinstance(value, dict) else f"must be an object, not {shown(value)}"


def _object_with_enabled(key: Key, value: Json) -> str:
    if isinstance(value, dict) and "enabled" not in value:
        return "must say whether it is enabled"
    return _object(key, value)


def _object_or_null(key: Key, value: Json) -> str:
    return "" if value is None else _object(key, value)


def _object_or_bool(key: Key, value: Json) -> str:
    return "" if isinstance(value, bool) else _object(key, value)


def _object_or_empty(key: Key, value: Json) -> str:
    return _object(key, value) if value else ""


def _container(key: Key, value: Json) -> str:
    """DeepSpeed only asks whether a word is in it."""
    return "" if isinstance(value, dict | list | str) else f"must be an object, not {shown(value)}"


def _text_or_null(key: Key, value: Json) -> str:
    return "" if value is None or isinstance(value, str) else f"must be a string, not {shown(value)}"


def _not_empty(key: Key, value: Json) -> str:
    return "" if value else f"must not be empty, but is {shown(value)}"


def _absent(key: Key, value: Json) -> str:
    return "" if value is None else f"is not supported, so that only null is taken, not {shown(value)}"


def _false(key: Key, value: Json) -> str:
    return f"works on CUDA devices only, so it must be false, not {shown(value)}" if value else ""


def _bits(key: Key, value: Json) -> str:
    """Joined with another switch by Python's ``|``."""
    return "" if isinstance(value, int) else f"must be true or false, not {shown(value)}"


def _bool_of_python(key: Key, value: Json) -> str:
    """``value in [True, False]``, which 1 and 0.0 pass too."""
    return (
        ""
        if isinstance(value, int | float) and value in (0, 1)
        else f"must be true or false, not {shown(value)}"
    )


def _python_int(key: Key, value: Json) -> str:
    try:
        int(value)
    except (TypeError, ValueError, OverflowError):
        return f"must be a whole number, not {shown(value)}"
    return ""


def _numeric_or_zero(key: Key, value: Json) -> str:
    """``value and value % 8``."""
    if not value or isinstance(value, int | float):
        return ""
    return f"must be a number, not {shown(value)}"


def _auto_or_names(key: Key, value: Json) -> str:
    if value == "auto" or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        return ""
    return f'must be "auto" or a list of strings, not {shown(value)}'


def _names(key: Key, value: Json) -> str:
    """All members strings; a string's and an object's members are."""
    if isinstance(value, list | dict | str) and all(isinstance(item, str) for item in value):
        return ""
    return f"must be a list of strings, not {shown(value)}"


def _loss_scale(key: Key, value: Json) -> str:
    """DeepSpeed 0.19's own validator: float() and then finite and at least 0."""
    if isinstance(value, bool):
        return f"must be a number, not {shown(value)}"
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return f"must be a number, not {shown(value)}"
    return (
        "" if math.isfinite(number) and number >= 0 else f"must be finite and at least 0, not {shown(value)}"
    )


def _scale_count(key: Key, value: Json) -> str:
    """DeepSpeed 0.19's own validator: no bool, int() works, and then what pydantic says."""
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return f"must be a whole number, not {shown(value)}"
    return _python_int(key, value) or lax_refusal(key, value)


def _names_or_name(key: Key, value: Json) -> str:
    """zero_optimization.leaf_module: one string is made a list of one."""
    return "" if isinstance(value, str) else lax_refusal(key, value)


CHECKS: dict[str, Rule] = {
    "nothing": _nothing,
    "pydantic": lax_refusal,
    "number": _number,
    "positive": _positive,
    "folded choice": _folded_choice,
    "folded choice or null": _folded_choice_or_null,
    "choice": _choice,
    "object": _object,
    "object with enabled": _object_with_enabled,
    "object or null": _object_or_null,
    "object or bool": _object_or_bool,
    "object or empty": _object_or_empty,
    "container": _container,
    "text or null": _text_or_null,
    "not empty": _not_empty,
    "absent": _absent,
    "false": _false,
    "bits": _bits,
    "bool of Python": _bool_of_python,
    "int of Python": _python_int,
    "numeric or zero": _numeric_or_zero,
    "auto or names": _auto_or_names,
    "names": _names,
    "loss scale": _loss_scale,
    "scale count": _scale_count,
    "names or name": _names_or_name,
}
