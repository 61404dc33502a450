"""``ds-config list``: the presets, one a line."""

from __future__ import annotations

import argparse

HELP = "list the presets, one a line"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no argument: the list is always whole."""


def run(args: argparse.Namespace) -> int:
    """Print the names of the presets and what each does; one that needs a value says which."""
    from ds_configs.presets import describe_preset, starting_points

    width = max(len(name) for name in starting_points())
    for name in starting_points():
        print(f"{name:<{width}}  {describe_preset(name)}")
    return 0
