"""Findings as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from ds_configs.lint.finding import SEVERITIES, Finding, codes
from ds_configs.lint.run import Report

WHO = {"hf": "HF's Trainer or accelerate", "deepspeed": "DeepSpeed alone", "both": "HF and DeepSpeed alone"}


def as_text(reports: Sequence[Report], quiet: bool = False) -> str:
    """Return the findings of all files, each with its place, and a closing line.

    ``quiet`` leaves notes out.
    """
    lines: list[str] = []
    for report in reports:
        shown = [finding for finding in report.findings if not (quiet and finding.severity == "note")]
        lines += [line for finding in shown for line in _lines(finding)]
        lines.append(_summary(report))
    return "\n".join(lines) + "\n"


def codes_as_text() -> str:
    """Return one line for each code."""
    return "".join(f"{c.code}  {c.severity:<7}  {c.name}: {c.title}\n" for c in codes().values())


def _lines(finding: Finding) -> list[str]:
    where = f"{finding.path}:{finding.line}:{finding.column}" if finding.line else finding.path
    fix = " (--fix)" if finding.fixable and finding.severity != "note" else ""
    return [
        f"{where}: {finding.severity} {finding.code}: {finding.reason}",
        f"    if left: {finding.consequence}",
        f"    mend: {finding.mend}{fix}",
    ]


def _summary(report: Report) -> str:
    counts = [
        f"{report.count(s)} {s}{'' if report.count(s) == 1 else 's'}" for s in SEVERITIES if report.count(s)
    ]
    found = ", ".join(counts) or "nothing found"
    who = WHO[report.target_name]
    why = ' (as its "auto" says)' if report.detected and report.target_name == "hf" else ""
    if report.detected and report.target_name == "deepspeed":
        why = ' (no "auto" for HF to fill; --for hf for HF)'
    return f"{report.path}: {found}, read for {who}{why}, DeepSpeed {report.version}"
