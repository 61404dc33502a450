"""`npu-plugins preflight`: are these ranks ready?"""

from __future__ import annotations

import argparse
from pathlib import Path

_EPILOG = (
    "As ranks of a launcher: `torchrun --nproc-per-node 8 --no-python npu-plugins preflight`, or `deepspeed "
    "--no_python --no_local_rank npu-plugins preflight`. By itself it starts ranks on this machine. Exit "
    "status: 0 where all ranks are ready (warnings may be shown), 1 where they are not; with --strict, 1 for "
    "a warning too."
)


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command to the parser."""
    preflight = commands.add_parser(
        "preflight",
        help="let all ranks meet, compare themselves, communicate and measure links; name who is at fault",
        epilog=_EPILOG,
    )
    preflight.set_defaults(run=_preflight)
    preflight.add_argument(
        "-g", "--ranks", type=int, metavar="N", help="ranks to start on this machine; by default one a device"
    )
    for axis, what in (("tp", "tensor"), ("pp", "pipeline"), ("ep", "expert")):
        preflight.add_argument(
            f"--{axis}", type=int, default=1, metavar="DEGREE", help=f"{what}-parallel degree (1)"
        )
    preflight.add_argument("--device", metavar="KIND", help="cpu, npu, …; by default the accelerator here")
    preflight.add_argument(
        "--config",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="compare this file of each rank",
    )
    preflight.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="of each phase; by default HCCL_TIMEOUT, else 120",
    )
    preflight.add_argument(
        "--no-links", action="store_true", help="do not measure bandwidth and latency of links"
    )
    preflight.add_argument(
        "--bytes", default="4M", metavar="SIZE", help="of a message by which bandwidth is measured (4M)"
    )
    preflight.add_argument(
        "--slow-factor",
        type=float,
        default=3.0,
        metavar="TIMES",
        help="a link is slow that takes so many times as long as the usual one of its kind (3)",
    )
    preflight.add_argument(
        "--min-bandwidth",
        type=float,
        default=0.0,
        metavar="GB/S",
        help="a link is slow below this, each way, whatever the others do (0)",
    )
    preflight.add_argument(
        "--max-skew", type=float, default=1.0, metavar="SECONDS", help="that clocks may be apart (1)"
    )
    preflight.add_argument("--strict", action="store_true", help="let warnings count as errors")
    preflight.add_argument("--json", action="store_true", help="print the report as JSON")


def _preflight(options: argparse.Namespace) -> int:
    from npu_plugins.diagnostics.preflight.command import preflight_command

    return preflight_command(options)
