"""`npu-plugins pipeline`: schedules on paper."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(commands: argparse._SubParsersAction) -> None:
    """Add the family to the parser."""
    pipeline = commands.add_parser("pipeline", help="pipeline schedules on paper: timeline, bubble, memory")
    actions = pipeline.add_subparsers(required=True, metavar="ACTION")
    show = actions.add_parser("show", help="draw the timeline of one schedule, and say what it costs")
    show.set_defaults(run=_show)
    show.add_argument(
        "--schedule", required=True, metavar="NAME", help="such as 1f1b or zb-v; `compare` lists them"
    )
    compare = actions.add_parser("compare", help="put all schedules side by side")
    compare.set_defaults(run=_compare)
    for parser in (show, compare):
        parser.add_argument(
            "-p", dest="ranks", type=int, required=True, metavar="RANKS", help="pipeline ranks"
        )
        parser.add_argument(
            "-m", dest="micro_batches", type=int, required=True, metavar="MICRO_BATCHES", help="of one step"
        )
        parser.add_argument(
            "-v",
            dest="virtual_stages",
            type=int,
            metavar="STAGES",
            help="stages on each rank, for interleaved (2)",
        )
        for name in ("forward", "input-gradient", "weight-gradient"):
            parser.add_argument(
                f"--{name}", default="1", metavar="TIME", help="of one micro-batch on one rank (1)"
            )
        parser.add_argument(
            "--transfer", default="0", metavar="TIME", help="of one message, beside compute (0)"
        )
    show.add_argument("--svg", type=Path, metavar="FILE", help="draw it there, too")
    show.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a Chrome trace, 1 ms for each unit of time"
    )
    show.add_argument("--actions", action="store_true", help="print what each rank does, with its transfers")


def _show(options: argparse.Namespace) -> int:
    from npu_plugins.pipeline.commands import show

    return show(options)


def _compare(options: argparse.Namespace) -> int:
    from npu_plugins.pipeline.commands import compare

    return compare(options)
