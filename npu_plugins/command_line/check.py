"""`npu-plugins check` and `compare-loss`: what a run has recorded, and runs side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

_STATUS = "exit status: 0 where nothing is wrong, 1 otherwise"


def add(commands: argparse._SubParsersAction) -> None:
    """Add both commands to the parser."""
    check = commands.add_parser("check", help="look at the gradients, parameters, memory or losses of a run")
    kinds = check.add_subparsers(required=True, metavar="KIND")
    for kind, words in (
        ("gradients", "what --check_gradients has found in a run"),
        (
            "parameters",
            "what --check_gradients has found of parameters; or two checkpoints, compared by bits",
        ),
        ("memory", "what --check_memory has measured on each rank, with imbalance and its cause"),
        ("loss", "whether a run's losses are finite, fall and do not leap; or agree with another run's"),
    ):
        parser = kinds.add_parser(kind, help=words, epilog=_STATUS)
        parser.set_defaults(run=_check, kind=kind)
        parser.add_argument("path", type=Path, metavar="RUN", help="its output_dir")
        parser.add_argument("--json", action="store_true", help="print JSON")
        if kind == "parameters":
            parser.add_argument(
                "other", type=Path, nargs="?", metavar="OTHER", help="with it, both are checkpoints"
            )
        if kind == "memory":
            parser.add_argument("--step", type=int, help="by default the last one measured")
        if kind == "loss":
            parser.add_argument(
                "--reference", type=Path, metavar="RUN", help="compare with it, as compare-loss"
            )
            _add_comparison(parser)
    compare = commands.add_parser(
        "compare-loss",
        help="say whether two runs have the same losses, and from which step not",
        epilog=_STATUS,
    )
    compare.set_defaults(run=_compare)
    compare.add_argument(
        "first",
        type=Path,
        metavar="A",
        help="a run's output_dir, trainer_state.json, JSON lines, CSV, log, events",
    )
    compare.add_argument("second", type=Path, metavar="B", help="such as a run on many cards, A being on one")
    compare.add_argument("--json", action="store_true", help="print JSON")
    _add_comparison(compare)


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, help="how many, from the beginning (100)")
    parser.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), help="that they trained in (bf16)")
    parser.add_argument("--tolerance", type=float, help="relative; by default the one of --dtype")
    parser.add_argument("--key", default="loss", help="of the log's entries (loss)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw both curves into a PNG file")


def _check(options: argparse.Namespace) -> int:
    from npu_plugins.diagnostics import commands

    if options.kind == "loss" and options.reference is not None:
        options.first, options.second = options.reference, options.path
        return commands.compare_command(options)
    return commands.check_command(options)


def _compare(options: argparse.Namespace) -> int:
    from npu_plugins.diagnostics import commands

    return commands.compare_command(options)
