"""``ds-config explain``: what a key does, or every key of a file, a paragraph each."""

from __future__ import annotations

import argparse

HELP = "explain a key, or every key of a file: what it does, costs, and when to change it"
WIDEST = 110
NARROWEST = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "what",
        metavar="KEY|FILE",
        help="zero_optimization.stage, reduce_bucket_size, or a configuration file (- for standard input)",
    )
    parser.add_argument(
        "--deepspeed-version",
        metavar="VERSION",
        help="take defaults and keys of this DeepSpeed, such as 0.18 or 0.18.9 (default: the newest known)",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def run(args: argparse.Namespace) -> int:
    """Print the explanations."""
    import shutil

    from ds_configs.explain import explain_file, explain_key
    from ds_configs.explain.report import as_json, as_text
    from ds_configs.schema import LATEST

    version = args.deepspeed_version or LATEST
    found = explain_file(args.what, version) if _is_file(args.what) else [explain_key(args.what, version)]
    if args.format == "json":
        print(as_json(found))
    else:
        print(as_text(found, max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))))
    return 0


def _is_file(what: str) -> bool:
    """Whether a file is meant: no key has a slash, ends like a file, or is called ``-``."""
    import os

    return (
        what == "-"
        or "/" in what
        or what.endswith((".json", ".hjson", ".yaml", ".yml"))
        or os.path.isfile(what)
    )
