"""The command `npu-plugins`."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from npu_plugins import __version__
from npu_plugins.errors import NpuPluginsError

# In the order of `npu-plugins --help`; imported in main, where an interrupt is met.
_FAMILIES = (
    "simulator",
    "pipeline",
    "checkpoint",
    "comm_perf",
    "doctor",
    "preflight",
    "check",
    "hang",
    "explain",
)

_INTERRUPTED, _UNREAD = 130, 141  # as shells have it: 128 + SIGINT, 128 + SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (1 with one sentence on stderr when it cannot be done)."""
    try:
        _let_output_hold_any_character()
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
    finally:
        if arguments is None:
            _let_an_interrupt_end_it()


def _let_an_interrupt_end_it() -> None:
    """Leave SIGINT to the system: while the interpreter ends, Python would answer it with a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not one that is ignored, as by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _let_output_hold_any_character() -> None:
    """Write what the terminal's encoding has not, such as × in ASCII, as an escape instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="npu-plugins", description="Tools for training on Ascend NPUs.")
    parser.add_argument("--version", action="version", version=f"npu-plugins {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for family in _FAMILIES:
        import_module(f"npu_plugins.command_line.{family}").add(commands)
    return parser
