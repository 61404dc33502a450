"""The small configurations of ``cases.json``: for each code what is wrong, where, and how it is mended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """``config`` has the fault ``code`` at ``key``; ``fixed`` is what `--fix` makes of it (None: nothing)."""

    code: str
    key: str
    config: dict[str, Any]
    fixed: dict[str, Any] | None = None
    target: str = "deepspeed"
    ranks: int | None = 1
    name: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, [self.code, self.name or self.key, self.target]))


FAMILIES = {
    family: [Case(**fields) for fields in cases]
    for family, cases in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")).items()
}
ENGINE = FAMILIES["engine"]
CASES = [case for cases in FAMILIES.values() for case in cases]
