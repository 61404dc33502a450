"""``ds-config explain``: what a key does, or every key of a file, a paragraph each."""

from __future__ import annotations

import argparse
import sys

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

    from ds_configs.documents import read_document
    from ds_configs.explain import explain_document, explain_key
    from ds_configs.explain.report import as_json, as_text
    from ds_configs.schema import LATEST

    version = args.deepspeed_version or LATEST
    if _is_file(args.what, version):
        document = read_document(args.what)
        found = explain_document(document, version)
        refused = [fault for fault in document.faults if fault.deepspeed]
        if refused:
            line, _ = document.lines.position(refused[0].start)
            reason = f"{args.what}, line {line}: {refused[0].reason}"
            print(f"ds-config: note: {reason}; this is what is meant, see `ds-config lint`", file=sys.stderr)
    else:
        found = [explain_key(args.what, version)]
    if args.format == "json":
        print(as_json(found))
    else:
        print(as_text(found, max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))))
    return 0


def _is_file(what: str, version: str) -> bool:
    """Whether a file is meant: it is there, ends like one, is called ``-``, or has slashes and is no key."""
    import os

    from ds_configs.schema import load_schema

    if what == "-" or what.endswith((".json", ".hjson", ".yaml", ".yml")) or os.path.isfile(what):
        return True
    return "/" in what and load_schema(version).key(tuple(what.split("/"))) is None
