"""Finds the key that a user names: by its path, by the end of it, or by a word like it."""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from ds_configs.errors import DsConfigError
from ds_configs.pipeline_section import OWN
from ds_configs.schema import VERSIONS, Key, Schema, load_schema
from ds_configs.schema.key import spelt

# What other programs call a key: HF's, Megatron's and torch's words.
OTHER_WORDS = Path(__file__).parent / "other_words.json"
MOST_SHOWN = 8
MOST_LIKELY = 4
LIKENESS = 0.6
SHORTEST_PART = 4  # a shorter word is part of too many names


def find_key(schema: Schema, wanted: str) -> Key:
    """Return the key called ``wanted``: a whole path, or as much of its end as names one key only.

    Raises DsConfigError with the keys that were meant, where several or none are called so.
    """
    name = wanted.strip().strip(".").replace("/", ".")
    path = tuple(name.split("."))
    exact = schema.key(path)
    if exact is not None:
        return exact
    ending = [key for key in all_keys(schema) if key.path[-len(path) :] == path]
    firsts = [key for key in ending if key.alias_of is None] or ending
    if len(firsts) == 1:
        return firsts[0]
    if firsts:
        raise DsConfigError(f"{len(firsts)} keys are called {name}: name one of {_names(firsts)}")
    if name.removeprefix("pipeline.") in OWN:
        raise DsConfigError(
            f"DeepSpeed {schema.version} has no key {name}: npu_plugins' pipeline engine reads it in the "
            "section pipeline, as its README says; `ds-config lint` checks its value"
        )
    raise DsConfigError(f"{_unknown(schema, name)}{_likely(schema, name)}")


def all_keys(schema: Schema) -> list[Key]:
    """Return every key, parameters of optimizers and schedulers included, each once."""
    found = {key.name: key for key in schema.keys.values()}
    for kinds in schema.variants.values():
        for parameters in kinds.values():
            for key in parameters.values():
                found.setdefault(key.name, key)
    return list(found.values())


def likely_keys(schema: Schema, name: str) -> list[str]:
    """Return the keys that are spelt most like ``name``, the likeliest first.

    A key that is called so elsewhere, or by another program, is surely meant; else the whole path and its
    last word are compared.
    """
    word = name.lower().replace("-", "_")
    last = word.rpartition(".")[2]
    firsts = [key for key in all_keys(schema) if key.alias_of is None]
    by_last: dict[str, list[str]] = {}
    for key in firsts:
        by_last.setdefault(key.path[-1], []).append(key.name)
    if last in by_last:
        return by_last[last][:MOST_LIKELY]
    found = [
        known for known in _other_words().get(last, ()) if schema.key(tuple(known.split("."))) is not None
    ]
    above = word.rpartition(".")[0]
    beside = {key.path[-1]: key.name for key in firsts if above and key.name == f"{above}.{key.path[-1]}"}
    found += [beside[near] for near in get_close_matches(last, beside, MOST_LIKELY, LIKENESS)]
    if above and not beside:  # the path before the last word is misspelt itself
        found += get_close_matches(
            word, [key.name for key in firsts if len(key.path) > 1], MOST_LIKELY, LIKENESS
        )
    found += [
        known for match in get_close_matches(last, by_last, MOST_LIKELY, LIKENESS) for known in by_last[match]
    ]
    if len(last) >= SHORTEST_PART:
        found += [known for one, names in by_last.items() if last in one for known in names]
    return list(dict.fromkeys(found))[:MOST_LIKELY]


@cache
def _other_words() -> dict[str, tuple[str, ...]]:
    from ds_configs.lint.words import OLD_KEYS

    old = {name: (entry["to"],) for name, entry in json.loads(OLD_KEYS.read_text(encoding="utf-8")).items()}
    ours = {name: (key,) for name, key in json.loads(OTHER_WORDS.read_text(encoding="utf-8")).items()}
    return {**old, **ours}


def _unknown(schema: Schema, name: str) -> str:
    path = tuple(name.split("."))
    others = [version for version in VERSIONS if load_schema(version).key(path) is not None]
    if others:
        return f"DeepSpeed {schema.version} has no key {name}; {' and '.join(others)} have it"
    return f"DeepSpeed {schema.version} has no key {'.'.join(map(spelt, path))}"


def _likely(schema: Schema, name: str) -> str:
    likely = likely_keys(schema, name)
    return (
        f"; did you mean {' or '.join(likely)}?"
        if likely
        else "; `ds-config explain FILE` explains a file's keys"
    )


def _names(keys: list[Key]) -> str:
    names = sorted(key.name for key in keys)
    shown = ", ".join(names[:MOST_SHOWN])
    return shown if len(names) <= MOST_SHOWN else f"{shown} and {len(names) - MOST_SHOWN} more"
