"""The ``ds-config`` command: list the presets, show one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ds_configs.errors import DsConfigError
from ds_configs.presets import describe_preset, preset_names, preset_path


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``ds-config``."""
    parser = argparse.ArgumentParser(prog="ds-config", description="Ready DeepSpeed configurations.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the presets, one a line")
    show = commands.add_parser("show", help="print one preset as JSON")
    show.add_argument("name", metavar="NAME", help="a name that `ds-config list` prints")
    show.add_argument("--path", action="store_true", help="print the file's path instead of its text")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ds-config`` with ``argv`` (default: the command line) and return its exit status."""
    args = build_parser().parse_args(argv)
    try:
        if args.command == "list":
            width = max(len(name) for name in preset_names())
            for name in preset_names():
                print(f"{name:<{width}}  {describe_preset(name)}")
        else:
            path = preset_path(args.name)
            print(path if args.path else path.read_text(encoding="utf-8").rstrip())
    except DsConfigError as error:
        print(f"ds-config: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
