"""Which key was meant: the likely word, the block it belongs into, an older name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path as File

from ds_configs.lint.context import Context, Path
from ds_configs.schema import Schema

OLD_KEYS = File(__file__).parent / "old_keys.json"
# Of two words as alike as this one is a slip of the other; below it is only a guess.
SLIP = 0.88
GUESS = 0.75


@dataclass(frozen=True)
class Guess:
    """Where the writer's key was meant to be, and whether that is beyond doubt."""

    path: Path
    why: str
    sure: bool


def meant(context: Context, path: Path) -> Guess | None:
    """Return what the unknown key at ``path`` was meant to be, or None if nothing is like it."""
    old = _old_keys().get(".".join(path))
    if old and context.schema.key(tuple(old["to"].split("."))) is not None:
        return Guess(tuple(old["to"].split(".")), f"{old['to']} is meant, this is {old['why']}", sure=True)
    nested = (*path[:-1], *path[-1].split("."))
    if nested != path and context.schema.key(nested) is not None:
        return Guess(nested, "a dot in a name leads into no block", sure=True)
    slip = _alike(context.schema, path)
    if slip and slip.sure:
        return slip
    home = _home(context.schema, path)
    if home is not None and home[:-1] != path[:-1]:
        block = ".".join(home[:-1]) or "the top level"
        return Guess(
            home, f"it belongs into {block}" if home[:-1] else "it belongs to the top level", sure=True
        )
    return slip


@cache
def _old_keys() -> Mapping[str, Mapping[str, str]]:
    return json.loads(OLD_KEYS.read_text(encoding="utf-8"))


def _plain(word: str) -> str:
    return word.lower().replace("-", "_").replace(" ", "_").strip("_")


def _alike(schema: Schema, path: Path) -> Guess | None:
    """Return the sibling that is spelt most like the key."""
    word = _plain(path[-1])
    best, likeness = "", 0.0
    for name, key in schema.children(path[:-1]).items():
        if key.removed or name == path[-1]:
            continue
        found = SequenceMatcher(None, word, _plain(name)).ratio()
        if found > likeness:
            best, likeness = name, found
    if likeness < GUESS:
        return None
    return Guess((*path[:-1], best), f"{best} is spelt almost like it", sure=likeness >= SLIP)


def _home(schema: Schema, path: Path) -> Path | None:
    """Return the one place where a key of this name is known, or None: "enabled" has too many."""
    homes = [
        key.path
        for key in schema.named(path[-1])
        if not key.removed and key.alias_of is None and key.new_path is None
    ]
    inside = [home for home in homes if home[:-1] != path[:-1]]
    near = [home for home in inside if path[:-1] == home[: len(path) - 1] or len(home) == 1]
    if len(near) == 1:
        return near[0]
    telling = "_" in path[-1]  # "names" or "enabled" may be anybody's
    return inside[0] if len(inside) == 1 and telling else None
