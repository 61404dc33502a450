"""`npu-plugins doctor`: is this machine right?"""

from __future__ import annotations

import argparse
import os
import sys

_STATUS = (
    "exit status: 0 where training on an NPU can start (warnings may be shown), 1 where something"
    " makes it fail;"
    " with --strict, 1 for a warning too"
)


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command to the parser."""
    doctor = commands.add_parser(
        "doctor",
        help="look at torch_npu, CANN, driver, NPUs, network and limits here, and say what to mend",
        epilog=_STATUS,
    )
    doctor.set_defaults(run=_doctor)
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.add_argument("--strict", action="store_true", help="end with status 1 for a warning too")
    doctor.add_argument("-q", "--quiet", action="store_true", help="show only what is wrong")


def _doctor(options: argparse.Namespace) -> int:
    from npu_plugins.diagnostics.doctor import examine, this_machine
    from npu_plugins.diagnostics.doctor.report import as_json, as_text, exit_status

    findings = examine(this_machine())
    _say(as_json(findings) if options.json else as_text(findings, quiet=options.quiet))
    return exit_status(findings, strict=options.strict)


def _say(text: str) -> None:
    """Print, whatever the terminal can show, and also into a pipe whose reader has left (`| head`)."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Python would complain when it flushes stdout at its end; its documentation advises this.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
