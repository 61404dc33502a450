"""Puts together what is known of a key."""

from __future__ import annotations

from dataclasses import dataclass

from ds_configs.errors import DsConfigError
from ds_configs.explain.facts import default_of, fate_of, history_of, kind_of
from ds_configs.explain.lookup import find_key
from ds_configs.explain.texts import text_of
from ds_configs.schema import LATEST, Json, Key, Schema, load_schema


@dataclass(frozen=True)
class Explanation:
    """One key explained.

    ``keys`` are those in a section; ``notes`` says what DeepSpeed does besides using the key: refuses,
    ignores, renames. ``value`` and ``line`` are of a key in a file, which ``is_set`` tells.
    """

    key: str
    version: str
    known: bool
    removed: bool = False
    type: str = ""
    default: str = ""
    does: str = ""
    unit: str = ""
    memory: str = ""
    communication: str = ""
    change: str = ""
    ascend: str = ""
    source: str | None = None
    history: str = ""
    keys: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_set: bool = False
    value: Json = None
    line: int | None = None


def explain_key(name: str, version: str = LATEST) -> Explanation:
    """Explain the key called ``name``, a path or the end of one, as DeepSpeed ``version`` has it.

    Raises DsConfigError, with the likely keys, when no key or more than one is called so.
    """
    schema = load_schema(version)
    return explanation_of(schema, find_key(schema, name))


def explanation_of(schema: Schema, key: Key, kind: str | None = None) -> Explanation:
    """Explain ``key``; ``kind`` is the optimizer's or scheduler's type that a parameter belongs to."""
    text = text_of(key)
    if text is None:
        raise DsConfigError(f"{key.name} has no text; its type is {kind_of(key)}")
    is_section = "object" in key.types and key.default in (None, {})
    return Explanation(
        key=key.name,
        version=schema.version,
        known=True,
        removed=bool(key.removed),
        type=kind_of(key),
        default="" if key.removed or is_section else default_of(schema, key, kind),
        does=text.does,
        unit=text.unit,
        memory=text.memory,
        communication=text.communication,
        change=text.change,
        ascend=text.ascend,
        source=text.source,
        history=history_of(key, schema.version),
        keys=tuple(sorted(_keys_in(schema, key, kind))),
        notes=tuple(fate_of(schema, key)),
    )


def _keys_in(schema: Schema, key: Key, kind: str | None) -> list[str]:
    """The keys that may stand in the object ``key``, without other spellings and removed ones."""
    inner = schema.children(key.path, kind)
    return [name for name, one in inner.items() if not (one.alias_of or one.removed)]
