"""`npu-plugins hang report`."""

from __future__ import annotations

import argparse

from npu_plugins.diagnostics.hang.analysis import analyse
from npu_plugins.diagnostics.hang.files import load
from npu_plugins.diagnostics.hang.flight_recorder import find_flight_dumps, load_flight_dumps
from npu_plugins.diagnostics.hang.report import to_json, write_report


def report(options: argparse.Namespace) -> int:
    """Print the report of the dumps in a folder. Returns 1 if it names a cause, 0 if the job did well."""
    flight = find_flight_dumps(options.directory)
    dumps, absent = (load_flight_dumps(flight), {}) if flight else load(options.directory)
    findings = analyse(dumps, absent)
    print(to_json(findings) if options.json else write_report(findings).rstrip())
    return 1 if findings.causes else 0
