"""The command `npu-plugins`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from npu_plugins import __version__
from npu_plugins.command_line import (
    check,
    checkpoint,
    comm_perf,
    doctor,
    explain,
    hang,
    pipeline,
    preflight,
    simulator,
)
from npu_plugins.errors import NpuPluginsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (1 with one sentence on stderr when it cannot be done)."""
    options = _parser().parse_args(arguments)
    options.command_line = list(sys.argv[1:] if arguments is None else arguments)  # for ranks that repeat it
    try:
        return options.run(options)
    except NpuPluginsError as error:
        print(f"npu-plugins: error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="npu-plugins", description="Tools for training on Ascend NPUs.")
    parser.add_argument("--version", action="version", version=f"npu-plugins {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for family in (simulator, pipeline, checkpoint, comm_perf, doctor, preflight, check, hang, explain):
        family.add(commands)
    return parser
