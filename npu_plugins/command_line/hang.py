"""`npu-plugins hang`: reports of jobs that hung or failed."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(commands: argparse._SubParsersAction) -> None:
    """Add the family to the parser."""
    hang = commands.add_parser(
        "hang", help="which rank did not come to which collective, and where it is instead"
    )
    actions = hang.add_subparsers(required=True, metavar="ACTION")
    report = actions.add_parser(
        "report", help="make the report of a job again from its dumps; status 1 if there is a fault in it"
    )
    report.set_defaults(run=_report)
    report.add_argument(
        "directory",
        type=Path,
        metavar="DIR",
        help="with rank<rank>.json, or dumps of torch's flight recorder",
    )
    report.add_argument("--json", action="store_true", help="print JSON, with all ranks and frames")
    dump = actions.add_parser(
        "dump", help="ask running ranks of this host for a report of what they do; their jobs go on"
    )
    dump.set_defaults(run=_dump)
    whom = dump.add_mutually_exclusive_group(required=True)
    whom.add_argument("--pid", type=int, nargs="+", help="of one rank of each job; it asks the others")
    whom.add_argument("--all", action="store_true", help="all launched ranks of this user on this host")


def _dump(options: argparse.Namespace) -> int:
    from npu_plugins.diagnostics.hang.commands import dump

    return dump(options)


def _report(options: argparse.Namespace) -> int:
    from npu_plugins.diagnostics.hang.commands import report

    return report(options)
