"""A dict that records which keys DeepSpeedConfig reads from it, and with which defaults."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ABSENT = object()


@dataclass
class Trace:
    """The keys read, by dotted path: default (ABSENT where none was given) and the file that reads it."""

    defaults: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def note(self, path: str, default: Any) -> None:
        """Record one reading; a default that was given wins over a look without one."""
        if self.defaults.get(path, ABSENT) is ABSENT:
            self.defaults[path] = default
        self.sources.setdefault(path, _reader())


class TracedDict(dict[str, Any]):
    """Hands out traced dicts for the objects in it."""

    def __init__(self, data: dict[str, Any], trace: Trace, above: str = "") -> None:
        super().__init__(data)
        self.trace = trace
        self.above = above

    def _path(self, key: str) -> str:
        return f"{self.above}.{key}" if self.above else key

    def _wrap(self, key: str, value: Any) -> Any:
        return TracedDict(value, self.trace, self._path(key)) if type(value) is dict else value

    def get(self, key: str, default: Any = None) -> Any:
        """Look ``key`` up, recording the default."""
        self.trace.note(self._path(key), default)
        return self._wrap(key, super().get(key, default))

    def __getitem__(self, key: str) -> Any:
        self.trace.note(self._path(key), ABSENT)
        return self._wrap(key, super().__getitem__(key))

    def __contains__(self, key: object) -> bool:
        self.trace.note(self._path(str(key)), ABSENT)
        return super().__contains__(key)

    def keys(self) -> Any:
        """Return keys whose ``in`` is recorded too: DeepSpeed asks ``KEY in config.keys()``."""
        return _TracedKeys(self)

    def __copy__(self) -> TracedDict:
        return TracedDict(self, self.trace, self.above)


class _TracedKeys:
    def __init__(self, owner: TracedDict) -> None:
        self.owner = owner

    def __contains__(self, key: object) -> bool:
        return key in self.owner

    def __iter__(self) -> Iterator[str]:
        return iter(self.owner)

    def __len__(self) -> int:
        return len(self.owner)


def _reader() -> str:
    """The file of the DeepSpeed package that is reading, get_scalar_param and the like left out."""
    files = [frame.filename.replace("\\", "/") for frame in traceback.extract_stack()]
    inside = [name.rpartition("/deepspeed/")[2] for name in files if "/deepspeed/" in name]
    own = [name for name in inside if not name.endswith("config_utils.py")]
    return own[-1] if own else ""
