"""`npu-plugins explain`: error codes of HCCL, ACL and the runtime."""

from __future__ import annotations

import argparse


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command to the parser."""
    explain = commands.add_parser(
        "explain", help="what the error codes of HCCL, ACL and torch_npu in a log mean, and what to do"
    )
    explain.set_defaults(run=_explain)
    explain.add_argument(
        "what",
        nargs="+",
        metavar="FILE|CODE",
        help="log files, codes such as EI0002, 507015 or HCCL_E_TIMEOUT; - reads standard input",
    )
    explain.add_argument("--json", action="store_true", help="print JSON")


def _explain(options: argparse.Namespace) -> int:
    from npu_plugins.diagnostics.codes.command import explain_command

    return explain_command(options)
