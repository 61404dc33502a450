"""The ``ds-config`` command: one subcommand for each module of ``ds_configs.commands``."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from ds_configs.errors import DsConfigError

# In the order of `ds-config --help`.
COMMANDS = ("list", "show", "generate", "resolve", "lint", "explain", "memory", "plan")
REFUSED = 2
INTERRUPTED = 130  # as shells have it: 128 + SIGINT


def build_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the argument parser of ``ds-config`` with the commands ``names``."""
    parser = argparse.ArgumentParser(
        prog="ds-config",
        description="DeepSpeed configurations for Ascend NPUs.",
        epilog="Exit status: 0 done, 1 done and something was found, 2 refused (the reason is on stderr).",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        module = import_module(f"ds_configs.commands.{name}")
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ds-config`` with ``argv`` (default: the command line) and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Only the module of a command that is named is imported: what the others import would delay it.
    names = tuple(words[:1]) if words and words[0] in COMMANDS else COMMANDS
    try:
        _ready_streams()
        args = build_parser(names).parse_args(words)
        status = args.run(args)
        sys.stdout.flush()
    except DsConfigError as error:
        print(f"ds-config: {error}", file=sys.stderr)
        return REFUSED
    except BrokenPipeError:
        _drop_output()  # the reader, such as `head`, has gone
        return 0
    except OSError as error:
        _drop_output()
        print(f"ds-config: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if argv is None:
            _let_an_interrupt_end_it()
    return status


def _let_an_interrupt_end_it() -> None:
    """Leave SIGINT to the system: while the interpreter ends, Python would answer it with a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not one that is ignored, as by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _ready_streams() -> None:
    """Open a closed standard stream, for which Python has None, and let output hold any character."""
    # They stay open as long as the process lives.
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Let what Python flushes at exit go nowhere: it must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
