"""Findings as SARIF 2.1.0 (OASIS standard), which code hosts show beside the lines of a change."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from ds_configs.documents import Edit
from ds_configs.documents.source import STDIN
from ds_configs.documents.text import LineMap
from ds_configs.lint.finding import Finding, codes
from ds_configs.lint.run import Report

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def as_sarif(reports: Sequence[Report]) -> str:
    """Return the findings of all files as one SARIF log with one run."""
    used = sorted({finding.code for report in reports for finding in report.findings})
    index = {code: place for place, code in enumerate(used)}
    run = {
        "tool": {"driver": {"name": "ds-config lint", "rules": [_rule(code) for code in used]}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(report, finding, index) for report in reports for finding in report.findings],
    }
    return (
        json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)
        + "\n"
    )


def _rule(code: str) -> dict[str, Any]:
    known = codes()[code]
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in known.name.split("-")),
        "shortDescription": {"text": known.title},
        "fullDescription": {"text": f"{known.title}. If left: {known.consequence}."},
        "defaultConfiguration": {"level": known.severity},
    }


def _result(report: Report, finding: Finding, index: dict[str, int]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index[finding.code],
        "level": finding.severity,
        "message": {"text": f"{finding.reason}. If left: {finding.consequence}. Mend: {finding.mend}."},
        "locations": [_location(finding)],
    }
    if finding.edits and finding.line:
        result["fixes"] = [_fix(report, finding)]
    return result


def _location(finding: Finding) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.path)}}
    if finding.line:
        physical["region"] = {
            "startLine": finding.line,
            "startColumn": finding.column,
            "endLine": finding.end_line,
            "endColumn": finding.end_column,
        }
    location: dict[str, Any] = {"physicalLocation": physical}
    if finding.key:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.key, "kind": "member"}]
    return location


def _fix(report: Report, finding: Finding) -> dict[str, Any]:
    lines = report.document.lines
    replacements = [_replacement(lines, edit) for edit in finding.edits]
    change = {"artifactLocation": {"uri": _uri(finding.path)}, "replacements": replacements}
    return {"description": {"text": finding.mend}, "artifactChanges": [change]}


def _replacement(lines: LineMap, edit: Edit) -> dict[str, Any]:
    start_line, start_column = lines.position(edit.start)
    end_line, end_column = lines.position(edit.end)
    region = {
        "startLine": start_line,
        "startColumn": start_column,
        "endLine": end_line,
        "endColumn": end_column,
    }
    return {"deletedRegion": region, "insertedContent": {"text": edit.replacement}}


def _uri(path: str) -> str:
    """Return ``path`` as a URI reference; standard input has no name of its own."""
    if path == STDIN:
        return "stdin"
    pure = PurePath(path)
    return pure.as_uri() if pure.is_absolute() else quote(os.fsencode(pure.as_posix()))
