"""The command `npu-plugins`."""

from __future__ import annotations

import argparse
import io
import os
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

_INTERRUPTED, _UNREAD = 130, 141  # as shells have it: 128 + SIGINT, 128 + SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (1 with one sentence on stderr when it cannot be done)."""
    _let_output_hold_any_character()
    try:
        options = _parser().parse_args(arguments)
        options.command_line = list(sys.argv[1:] if arguments is None else arguments)  # ranks repeat it
        status = options.run(options)
        sys.stdout.flush()
        return status
    except NpuPluginsError as error:
        print(f"npu-plugins: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as `head`, has gone
        # Python would complain when it flushes stdout at its end; its documentation advises this.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _UNREAD
    except KeyboardInterrupt:
        return _INTERRUPTED


def _let_output_hold_any_character() -> None:
    """Write what the terminal's encoding has not, such as × in ASCII, as an escape instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="npu-plugins", description="Tools for training on Ascend NPUs.")
    parser.add_argument("--version", action="version", version=f"npu-plugins {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for family in (simulator, pipeline, checkpoint, comm_perf, doctor, preflight, check, hang, explain):
        family.add(commands)
    return parser
