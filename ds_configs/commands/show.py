"""``ds-config show``: one preset as JSON."""

from __future__ import annotations

import argparse

HELP = "print one preset as JSON"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="NAME", help="a name that `ds-config list` prints")
    parser.add_argument("--path", action="store_true", help="print the file's path instead of its text")


def run(args: argparse.Namespace) -> int:
    """Print the preset, or where it lies."""
    from ds_configs.presets import preset_path

    path = preset_path(args.name)
    print(path if args.path else path.read_text(encoding="utf-8").rstrip())
    return 0
