"""One key of a DeepSpeed configuration: its types, default and limits, and what becomes of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

# What json.load returns; a recursive alias would only obscure the signatures.
Json = Any

TYPES = ("bool", "int", "float", "str", "list", "object", "null")


@dataclass(frozen=True)
class Key:
    """What one DeepSpeed version does with one key.

    ``types`` are the JSON types that the key is meant to hold, () where no JSON value fits. ``check`` names
    the rule by which DeepSpeed's parser looks at the value, one of ``ds_configs.schema.checks.CHECKS``; many
    keys are not looked at there, so that a wrong value fails later or never.
    """

    path: tuple[str, ...]
    types: tuple[str, ...]
    default: Json = None
    default_rule: str = ""  # where the default is not one value, such as overlap_comm's
    required: bool = False
    choices: tuple[Json, ...] = ()  # they bind values of their own types only
    folds_case: bool = False  # the choices are compared without regard to case
    minimum: float | None = None
    maximum: float | None = None
    open_minimum: bool = False  # the minimum itself is refused
    open_maximum: bool = False
    items: tuple[str, ...] = ()  # types of a list's members; () where they are not looked at
    item_choices: tuple[Json, ...] = ()
    integral_float: bool = False  # 2e8 is taken for an int
    strict: bool = False  # an object that refuses keys it does not know
    open: bool = False  # an object whose keys this schema does not list
    check: str = "nothing"
    needs: str = ""  # the key beside it without which it is not read
    alias_of: tuple[str, ...] | None = None  # another spelling of this key
    new_path: tuple[str, ...] | None = None  # deprecated: the key that replaces it
    deprecated: str = ""  # what DeepSpeed says of a deprecated key
    removed: str = ""  # refused whatever it holds; the reason
    removed_by: str = ""  # "parser" (DeepSpeedConfig) or "engine" (deepspeed.initialize)
    consumed: bool = True  # False: parsed, then never read
    ignored: str = ""  # why, or under which condition, it has no effect
    source: str = ""  # where the DeepSpeed package reads it

    def __post_init__(self) -> None:
        """Refuse a type that JSON does not have: the data file is wrong then."""
        for name in (*self.types, *self.items):
            if name not in TYPES:
                raise ValueError(f"{self.name} has the type {name!r}; JSON has {', '.join(TYPES)}")

    @property
    def name(self) -> str:
        """The path with dots, as people write it."""
        return ".".join(self.path)

    def fits(self, value: Json) -> bool:
        """Whether ``value`` has one of the types the key is meant to hold, unconverted.

        A whole number fits a float, and 2e8 an int where DeepSpeed takes it.
        """
        return any(self._fits(name, value) for name in self.types)

    def _fits(self, name: str, value: Json) -> bool:
        found = json_type(value)
        if name == "float":
            return found in ("int", "float")
        if name == "int" and found == "float":
            return self.integral_float and value.is_integer()
        return found == name


def json_type(value: Json) -> str:
    """Return the JSON type of a Python value that ``json.load`` made, one of TYPES."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    for kind, name in ((int, "int"), (float, "float"), (str, "str"), (list, "list"), (dict, "object")):
        if isinstance(value, kind):
            return name
    raise TypeError(f"{value!r} is not a JSON value")


def spelt(name: str) -> str:
    """Return a user's ``name`` of a key as a message shows it: in quotes unless it is a plain word."""
    return name if re.fullmatch(r"[\w\-]+", name) else json.dumps(name, ensure_ascii=False)


def shown(value: Json) -> str:
    """Return ``value`` as a message shows it: as JSON, a long one cut."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
