"""What a check of the doctor says: one sentence about what it saw, and how to mend what is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from npu_plugins.diagnostics.errors import DiagnosticsError

LEVELS = ("ok", "warning", "error")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    check: str
    """What was looked at, such as `cann.set_env`; the same name in every version of the doctor."""
    level: str
    """One of `LEVELS`. An error: training on an NPU fails. A warning: it may fail, or be slow."""
    seen: str
    """One sentence with the values seen."""
    mend: str = ""
    """What to do about it; empty only where nothing is wrong."""

    def __post_init__(self) -> None:
        """Refuse a level that no report knows, and a fault without a mend."""
        if self.level not in LEVELS:
            raise DiagnosticsError(
                f"The level of a finding is {self.level!r}; it is one of {', '.join(LEVELS)}"
            )
        if self.level != "ok" and not self.mend:
            raise DiagnosticsError(f"The {self.level} {self.check!r} has no mend; say what to do about it")


def ok(check: str, seen: str) -> Finding:
    """Return a finding that nothing is wrong."""
    return Finding(check, "ok", seen)


def warning(check: str, seen: str, mend: str) -> Finding:
    """Return a finding of something that may make training fail, or slow."""
    return Finding(check, "warning", seen, mend)


def error(check: str, seen: str, mend: str) -> Finding:
    """Return a finding of something that makes training on an NPU fail."""
    return Finding(check, "error", seen, mend)


def worst(findings: Iterable[Finding]) -> str:
    """Return the highest level among the findings; `ok` if there are none."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")
