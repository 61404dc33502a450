"""The findings as text for a reader, and as JSON for a program."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from npu_plugins.diagnostics.doctor.finding import LEVELS, Finding, worst

_WIDTH = 110
_INDENT = " " * 9


def as_text(findings: Sequence[Finding], *, quiet: bool = False) -> str:
    """Return one paragraph for each finding, in their order, and a line of totals.

    Args:
        quiet: leave out what is ok.
    """
    shown = [finding for finding in findings if not quiet or finding.level != "ok"]
    counts = Counter(finding.level for finding in findings)
    totals = ", ".join(f"{counts[level]} {level}" for level in reversed(LEVELS))
    return "\n".join([*map(_paragraph, shown), f"{totals}."])


def exit_status(findings: Sequence[Finding], *, strict: bool = False) -> int:
    """Return 1 if something makes training on an NPU fail, or with `strict` if anything is wrong; else 0."""
    level = worst(findings)
    return int(level == "error" or (strict and level == "warning"))


def as_json(findings: Sequence[Finding]) -> str:
    """Return `{"level": the worst, "counts": {...}, "findings": [{check, level, seen, mend}, ...]}`."""
    counts = Counter(finding.level for finding in findings)
    content = {
        "level": worst(findings),
        "counts": {level: counts[level] for level in LEVELS},
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(content, indent=2)


def _paragraph(finding: Finding) -> str:
    lines = _wrapped(f"{finding.level:<7}  ", finding.seen)
    if finding.mend:
        lines += _wrapped(f"{_INDENT}-> ", finding.mend)
    return "\n".join(lines)


def _wrapped(first: str, text: str) -> list[str]:
    rest = " " * len(first)
    # Paths and commands stay whole, so that they can be copied.
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
