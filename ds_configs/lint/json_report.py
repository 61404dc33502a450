"""Findings as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ds_configs.lint.finding import SEVERITIES, Finding, codes
from ds_configs.lint.run import Report


def as_json(reports: Sequence[Report]) -> str:
    """Return the findings of all files as one JSON document."""
    return json.dumps({"files": [_file(report) for report in reports]}, indent=2, ensure_ascii=False) + "\n"


def _file(report: Report) -> dict[str, Any]:
    return {
        "path": report.path,
        "target": report.target_name,
        "target_detected": report.detected,
        "deepspeed_version": report.version,
        "counts": {severity: report.count(severity) for severity in SEVERITIES},
        "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": codes()[finding.code].name,
        "severity": finding.severity,
        "stops": codes()[finding.code].stops,
        "line": finding.line,
        "column": finding.column,
        "end_line": finding.end_line,
        "end_column": finding.end_column,
        "key": finding.key,
        "reason": finding.reason,
        "consequence": finding.consequence,
        "mend": finding.mend,
        "loaders": sorted(finding.loaders),
        "fix": _fix(finding),
    }


def _fix(finding: Finding) -> dict[str, Any] | None:
    if not finding.edits:
        return None
    edits = [{"start": e.start, "end": e.end, "replacement": e.replacement} for e in finding.edits]
    return {"safe": finding.safe, "edits": edits}
