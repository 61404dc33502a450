"""One key of a DeepSpeed configuration: its types, default and limits, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

# What json.load returns; a recursive alias would only obscure the signatures.
Json = Any

TYPES = ("bool", "int", "float", "str", "list", "object", "null")
Check = Literal["pydantic", "compared", "choice", "nothing"]


@dataclass(frozen=True)
class Key:
    """What one DeepSpeed version does with one key.

    ``types`` are the JSON types that the key is meant to hold; ``check`` says what DeepSpeed's parser itself
    looks at: "pydantic" converts what it can ("8" for 8, 1 for true) and refuses the rest, "compared" fails
    when the value cannot be compared with a number, "choice" looks only at the choices, and "nothing" takes
    any value at all, so that a wrong one fails later or never.
    """

    path: tuple[str, ...]
    types: tuple[str, ...]
    default: Json = None
    default_rule: str = ""  # where the default is not one value, such as overlap_comm's
    required: bool = False
    choices: tuple[Json, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    open_minimum: bool = False  # the minimum itself is refused
    open_maximum: bool = False
    items: tuple[str, ...] = ()  # types of a list's members; () where they are not looked at
    item_choices: tuple[Json, ...] = ()
    integral_float: bool = False  # 2e8 is taken for an int
    strict: bool = False  # an object that refuses keys it does not know
    check: Check = "nothing"
    folds_case: bool = False  # the choices are compared without regard to case
    alias_of: tuple[str, ...] | None = None  # another spelling of this key
    new_path: tuple[str, ...] | None = None  # deprecated: the key that replaces it
    deprecated: str = ""  # why, or what DeepSpeed does with it
    removed: str = ""  # refused even when empty; the reason
    consumed: bool = True  # False: parsed, then never read
    ignored: str = ""  # why it is never read, or under which condition it is not
    source: str = ""  # file of the DeepSpeed package that reads it

    def __post_init__(self) -> None:
        """Refuse a type that JSON does not have: the data file is wrong then."""
        unknown = set(self.types) - set(TYPES)
        if unknown:
            raise ValueError(
                f"{'.'.join(self.path)} has the type {sorted(unknown)[0]!r}; JSON has {', '.join(TYPES)}"
            )

    @property
    def name(self) -> str:
        """The path with dots, as people write it."""
        return ".".join(self.path)
