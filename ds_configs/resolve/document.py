"""A configuration that is being filled, with the record of who filled what."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ds_configs.errors import DsConfigError

AUTO = "auto"
Filler = Literal["HF", "accelerate", "nobody: ds-config"]


@dataclass(frozen=True)
class Fill:
    """One value that took the place of an ``"auto"``, or that was added."""

    key: str
    value: Any
    filler: Filler
    """Who does it in a run: HF's Trainer, accelerate, or nobody, so that ds-config chose it."""
    source: str
    """What the value comes from."""


@dataclass
class Document:
    """The configuration, the fills so far and what disagrees with the flags."""

    config: dict[str, Any]
    fills: list[Fill] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Document:
        """Return a document of a copy of ``config``."""
        return cls(copy.deepcopy(dict(config)))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value at dotted ``key``; ``default`` where it or a section above it is missing.

        Raises:
            DsConfigError: a section above it is no object.
        """
        node: Any = self.config
        names = key.split(".")
        for depth, name in enumerate(names):
            if node is None:
                return default
            if not isinstance(node, Mapping):
                section = ".".join(names[:depth])
                raise DsConfigError(
                    f"{section} is {node!r}, where an object with keys belongs; mend it first"
                )
            if name not in node:
                return default
            node = node[name]
        return node

    def is_auto(self, key: str) -> bool:
        """Whether dotted ``key`` is there and holds "auto"."""
        value = self.get(key)
        return isinstance(value, str) and value == AUTO

    def fill(self, key: str, value: Any, filler: Filler, source: str) -> None:
        """Set dotted ``key``, whose sections must exist, and record it."""
        self._parent(key)[key.rpartition(".")[2]] = value
        self.fills.append(Fill(key, value, filler, source))

    def leave_out(self, key: str, filler: Filler, source: str) -> None:
        """Remove dotted ``key`` and record that nothing stands for it."""
        del self._parent(key)[key.rpartition(".")[2]]
        self.fills.append(Fill(key, None, filler, source))

    def match(self, key: str, value: Any, source: str, flag: str) -> None:
        """Do as HF's ``fill_match``: fill an "auto", and note a value that ``flag`` contradicts."""
        found = self.get(key)
        if self.is_auto(key):
            self.fill(key, value, "HF", source)
        elif found is not None and found != value:
            self.mismatches.append(f"{key} is {found!r} in the file but {value!r} by {flag}")

    def autos(self) -> Iterator[str]:
        """Yield the dotted keys that still hold "auto", in the file's order."""
        yield from _autos(self.config, "")

    def _parent(self, key: str) -> dict[str, Any]:
        node = self.config
        for name in key.split(".")[:-1]:
            node = node[name]
        return node


def _autos(node: Any, prefix: str) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if isinstance(value, str) and value == AUTO:
                yield prefix + name
            else:
                yield from _autos(value, f"{prefix}{name}.")
