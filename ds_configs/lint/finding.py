"""What lint says of one place of a file, and the table of what it can say."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

from ds_configs.documents import Edit
from ds_configs.errors import DsConfigError

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
DEEPSPEED, HF = "deepspeed", "hf"
BOTH = frozenset((DEEPSPEED, HF))
CODES = Path(__file__).parent / "codes.json"


@dataclass(frozen=True)
class Code:
    """One kind of finding. Codes are stable: a meaning never moves to another code.

    ``stops`` is what refuses the file: "reader" (of JSON), "parser" (DeepSpeedConfig), "engine"
    (deepspeed.initialize or the run), "accelerate", or "" where nothing does.
    """

    code: str
    name: str
    severity: Severity
    stops: str
    title: str
    consequence: str
    fault: str = ""

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES or self.stops not in (
            "",
            "reader",
            "parser",
            "engine",
            "accelerate",
        ):
            raise DsConfigError(f"{self.code} has severity {self.severity!r} and stops {self.stops!r}")


@dataclass(frozen=True)
class Finding:
    """One thing found, with its place (lines and columns from 1; 0 where the file has none)."""

    code: str
    severity: Severity
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    key: str
    """The key with dots, "" where the finding is about the text."""
    reason: str
    consequence: str
    mend: str
    loaders: frozenset[str] = BOTH
    """Whom it concerns: DeepSpeed reading the file itself, HF, or both."""
    edits: tuple[Edit, ...] = field(default=())
    safe: bool = True
    """Whether the edits keep what the writer meant."""

    @property
    def fixable(self) -> bool:
        """Whether `--fix` mends it."""
        return bool(self.edits) and self.safe

    def as_note(self) -> Finding:
        """Return the same finding as a remark."""
        return replace(self, severity="note")


@cache
def codes() -> dict[str, Code]:
    """Return every code, by code."""
    table = json.loads(CODES.read_text(encoding="utf-8"))
    return {code: Code(code, **fields) for code, fields in table.items()}


@cache
def code_of_fault() -> dict[str, str]:
    """Return the code of each kind of fault that reading a document can have."""
    return {code.fault: code.code for code in codes().values() if code.fault}
