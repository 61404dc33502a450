"""The schema of one DeepSpeed version, read from its data file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from ds_configs.errors import DsConfigError
from ds_configs.schema.checks import refusal_of_value
from ds_configs.schema.key import Json, Key

FOLDER = Path(__file__).parent / "versions"
VERSIONS = ("0.16.9", "0.17.6", "0.18.9", "0.19.8")
LATEST = VERSIONS[-1]
PATHS = ("alias_of", "new_path")
TUPLES = ("types", "choices", "items", "item_choices")
# DeepSpeed's models take a key of this name for the switch of their constructor that keeps "auto" values.
SWITCH = "strict"
# The engine picks this optimizer's parameters out one by one (runtime/engine.py, _muon_param_groups), so that
# one it does not know is ignored; the others' are all handed to a class, which refuses it.
PICKED = ("muon",)
KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Refusal:
    """One key that DeepSpeed's parser refuses, and why: a clause that follows the key's name."""

    path: KeyPath
    reason: str


@dataclass(frozen=True)
class Schema:
    """Every key that one DeepSpeed version knows.

    ``variants`` holds the parameters of ``optimizer.params`` and ``scheduler.params``, which depend on the
    object's ``type``: path of the object, then type as DeepSpeed spells it, then name of the parameter.
    """

    version: str
    keys: Mapping[KeyPath, Key]
    variants: Mapping[KeyPath, Mapping[str, Mapping[str, Key]]] = field(default_factory=dict)

    @cached_property
    def _below(self) -> dict[KeyPath, dict[str, Key]]:
        found: dict[KeyPath, dict[str, Key]] = {}
        for path, key in self.keys.items():
            found.setdefault(path[:-1], {})[path[-1]] = key
        return found

    @cached_property
    def _by_name(self) -> dict[str, list[Key]]:
        found: dict[str, list[Key]] = {}
        for path, key in self.keys.items():
            found.setdefault(path[-1], []).append(key)
        return found

    def named(self, name: str) -> list[Key]:
        """Return every key whose path ends in ``name``, parameters of optimizers and schedulers left out."""
        return self._by_name.get(name, [])

    def key(self, path: KeyPath, kind: str | None = None) -> Key | None:
        """Return the key at ``path``, or None; ``kind`` is the optimizer's or scheduler's ``type``.

        Without ``kind`` a parameter of any type is found, the first type that has it deciding.
        """
        if not path:
            return None
        return self.keys.get(path) or self.children(path[:-1], kind).get(path[-1])

    def children(self, path: KeyPath, kind: str | None = None) -> dict[str, Key]:
        """Return the keys directly below ``path`` (``()`` for the top level), by name."""
        found = dict(self._below.get(path, {}))
        for name, keys in self.variants.get(path, {}).items():
            if kind is None or name.lower() == kind.lower():
                found = {**keys, **found}
        return found

    def is_strict(self, path: KeyPath) -> bool:
        """Whether DeepSpeed refuses a key it does not know in the object at ``path``."""
        key = self.keys.get(path)
        return key is not None and key.strict

    def refusals(self, document: Mapping[str, Json]) -> list[Refusal]:
        """Return what DeepSpeed's parser refuses in ``document``, key by key, in the order of the document.

        Rules between keys that no key can tell alone (the batch triple, fp16 beside bf16) are not among them.
        """
        return list(self._refusals((), document))

    def _refusals(self, above: KeyPath, values: Mapping[str, Json]) -> Iterator[Refusal]:
        known = self._below.get(above, {})
        for name, value in values.items():
            key = known.get(name)
            is_removed = key is not None and key.removed_by == "parser"
            if (
                self.is_strict(above)
                and not is_removed
                and (name == SWITCH or self._is_dropped(value, values))
            ):
                continue
            if key is not None:
                yield from self._refusals_of(key, value, values)
            elif self.is_strict(above):
                yield Refusal((*above, name), f"is not a key that DeepSpeed {self.version} knows here")

    def _refusals_of(self, key: Key, value: Json, beside: Mapping[str, Json]) -> Iterator[Refusal]:
        if key.removed_by == "parser":
            yield Refusal(key.path, f"is removed: {key.removed}")
            return
        if key.check != "pydantic" and key.alias_of and beside.get(key.alias_of[-1]) is not None:
            return  # bfloat16 beside bf16: never looked at
        if key.needs and beside.get(key.needs) is None:
            return
        other = self._other_name(key, beside)
        if other:
            yield Refusal(key.path, f"stands beside {other}, which is the same setting")
        if key.check == "pydantic" and value == "auto" and not self.is_strict(key.path[:-1]):
            return  # a monitor: DeepSpeed hands them to a model, which drops "auto"
        reason = refusal_of_value(key, value)
        if reason:
            yield Refusal(key.path, reason)
        elif isinstance(value, dict) and not key.open:
            yield from self._refusals(key.path, value)

    def _other_name(self, key: Key, beside: Mapping[str, Json]) -> str:
        """The other name of a setting that is given twice, as its alias or as its replacement."""
        target = key.alias_of or key.new_path
        if target is None or key.check != "pydantic" or target[:-1] != key.path[:-1]:
            return ""
        for path, other in self.keys.items():
            same = path == target or other.alias_of == target
            if same and path != key.path and path[:-1] == key.path[:-1] and path[-1] in beside:
                return "" if self._is_dropped(beside[path[-1]], beside) else path[-1]
        return ""

    def _is_dropped(self, value: Json, beside: Mapping[str, Json]) -> bool:
        return value == "auto" and not beside.get(SWITCH)


@cache
def load_schema(version: str = LATEST) -> Schema:
    """Return what DeepSpeed ``version`` accepts: "0.19.8", or "0.19" for the last one known of that minor.

    Raises DsConfigError for a version without a data file.
    """
    data = json.loads((FOLDER / f"{_known(version)}.json").read_text(encoding="utf-8"))
    return schema_of(data)


def schema_of(data: Mapping[str, Json]) -> Schema:
    """Return the schema that ``data``, the content of a version's file, describes."""
    keys = {path: _key(path, fields) for path, fields in _by_path(data["keys"])}
    variants = {
        above: {
            kind: {name: _key((*above, name), fields) for name, fields in parameters.items()}
            for kind, parameters in kinds.items()
        }
        for above, kinds in _by_path(data["variants"])
    }
    return Schema(data["version"], keys, variants)


def _by_path(named: Mapping[str, Json]) -> Iterator[tuple[KeyPath, Json]]:
    for name, value in named.items():
        yield tuple(name.split(".")), value


def _known(version: str) -> str:
    for known in VERSIONS:
        if version in (known, known.rpartition(".")[0]):
            return known
    raise DsConfigError(
        f"DeepSpeed {version} has no schema here: take the nearest of {', '.join(VERSIONS)} "
        "with --deepspeed-version"
    )


def _key(path: KeyPath, fields: Mapping[str, Json]) -> Key:
    values = dict(fields)
    for name in PATHS:
        if name in values:
            values[name] = tuple(values[name].split("."))
    for name in TUPLES:
        if name in values:
            values[name] = tuple(values[name])
    return Key(path, **values)
