"""The schema of one DeepSpeed version, read from its data file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ds_configs.errors import DsConfigError
from ds_configs.schema.key import Json, Key

FOLDER = Path(__file__).parent / "versions"
VERSIONS = ("0.19.8",)
LATEST = VERSIONS[-1]
PATHS = ("path", "alias_of", "new_path")
TUPLES = ("types", "choices", "items", "item_choices")


@dataclass(frozen=True)
class Schema:
    """Every key that one DeepSpeed version knows.

    ``variants`` holds the parameters of ``optimizer.params`` and ``scheduler.params``, which depend on the
    object's ``type``: path of the object, then type as DeepSpeed spells it, then name of the parameter.
    """

    version: str
    keys: dict[tuple[str, ...], Key]
    variants: dict[tuple[str, ...], dict[str, dict[str, Key]]] = field(default_factory=dict)

    def key(self, path: tuple[str, ...], kind: str | None = None) -> Key | None:
        """Return the key at ``path``, or None; ``kind`` is the optimizer's or scheduler's ``type``.

        Without ``kind`` a parameter of any type is found, the first type that has it deciding.
        """
        known = self.keys.get(path)
        if known is not None or len(path) < 2:
            return known
        return self.children(path[:-1], kind).get(path[-1])

    def children(self, path: tuple[str, ...], kind: str | None = None) -> dict[str, Key]:
        """Return the keys directly below ``path`` (``()`` for the top level), by name."""
        depth = len(path)
        found = {p[-1]: key for p, key in self.keys.items() if len(p) == depth + 1 and p[:depth] == path}
        for name, keys in self.variants.get(path, {}).items():
            if kind is None or name.lower() == kind.lower():
                found = {**keys, **found}
        return found

    def is_strict(self, path: tuple[str, ...]) -> bool:
        """Whether DeepSpeed refuses a key it does not know in the object at ``path``."""
        key = self.keys.get(path)
        return key is not None and key.strict


@cache
def load_schema(version: str = LATEST) -> Schema:
    """Return what DeepSpeed ``version`` accepts: "0.19.8", or "0.19" for the last one known of that minor.

    Raises DsConfigError for a version without a data file.
    """
    path = FOLDER / f"{_known(version)}.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    keys = {
        tuple(name.split(".")): _key(tuple(name.split(".")), fields) for name, fields in data["keys"].items()
    }
    variants: dict[tuple[str, ...], dict[str, dict[str, Key]]] = {}
    for owner, kinds in data.get("variants", {}).items():
        above = tuple(owner.split("."))
        variants[above] = {
            kind: {name: _key((*above, name), fields) for name, fields in parameters.items()}
            for kind, parameters in kinds.items()
        }
    return Schema(data["version"], keys, variants)


def _known(version: str) -> str:
    for known in VERSIONS:
        if version == known or version == known.rpartition(".")[0]:
            return known
    raise DsConfigError(
        f"DeepSpeed {version} has no schema here; there are {', '.join(VERSIONS)}: "
        "take the nearest with --deepspeed-version"
    )


def _key(path: tuple[str, ...], fields: dict[str, Json]) -> Key:
    values = dict(fields)
    for name in PATHS:
        if name in values:
            values[name] = tuple(values[name].split("."))
    for name in TUPLES:
        if name in values:
            values[name] = tuple(values[name])
    return Key(path, **values)
