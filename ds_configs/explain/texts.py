"""The sentences about each key, from the data files beside this module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ds_configs.schema import Key

FOLDER = Path(__file__).parent / "texts"


@dataclass(frozen=True)
class KeyText:
    """What is said of one key. ``memory`` and ``communication`` are empty where it has no effect on them."""

    does: str
    change: str
    """When to set it, and to what."""
    source: str | None
    """File of DeepSpeed 0.19.8 and a word in it that acts on the key; None where it is torch's or gone."""
    unit: str = ""
    memory: str = ""
    communication: str = ""
    ascend: str = ""

    def __post_init__(self) -> None:
        """Refuse a text that leaves the two questions of every reader open."""
        if not self.does or not self.change:
            raise ValueError("a text must say what the key does and when to change it")


@cache
def load_texts() -> Mapping[str, KeyText]:
    """Return the text of every key by its name with dots."""
    found: dict[str, KeyText] = {}
    for file in sorted(FOLDER.glob("*.json")):
        for name, fields in json.loads(file.read_text(encoding="utf-8")).items():
            if name in found:
                raise ValueError(f"{name} has two texts, the second in {file.name}")
            found[name] = KeyText(**fields)
    return found


def text_of(key: Key) -> KeyText | None:
    """Return the text of ``key``; another spelling of a key has that key's text."""
    name = ".".join(key.alias_of or key.path)
    return load_texts().get(name)
