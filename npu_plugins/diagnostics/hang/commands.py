"""`npu-plugins hang report` and `npu-plugins hang dump`."""

from __future__ import annotations

import argparse

from npu_plugins.diagnostics.errors import DiagnosticsError
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


def dump(options: argparse.Namespace) -> int:
    """Ask ranks for a report, and print where it will be.

    Raises:
        DiagnosticsError: there is no rank to be asked.
    """
    # The watch imports torch, which a report of dumps does without.
    from npu_plugins.diagnostics.hang.asking import ask, watched_ranks

    pids = [rank.pid for rank in watched_ranks()] if options.all else options.pid
    if not pids:
        raise DiagnosticsError(
            "No launched rank of this user on this host answers; name processes with --pid (ranks have the "
            "hang watch unless NPU_PLUGINS_HANG_WATCH=0)"
        )
    for asked in ask(pids):
        who = f"rank {asked.rank} (process {asked.pid})" if asked.rank else f"process {asked.pid}"
        print(f"asked {who}; the report is printed by its job, and written into a folder of {asked.reports}")
    return 0
