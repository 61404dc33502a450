"""``ds-config lint``: what is wrong with configuration files, why, and how to mend it.

Errors are what a loader refuses or what has certainly not the effect it should have; warnings hurt or are
ignored; notes are worth knowing. Without --for a file with an "auto" that HF fills is read for HF, any other
one for DeepSpeed alone.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ds_configs.errors import DsConfigError

if TYPE_CHECKING:
    from ds_configs.lint import Fixed, Report

HELP = "find what is wrong with configuration files, and mend it"
FOUND = 1
FLAGS = {"target": "for"}  # fields that are not called as their flag


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="ds_config files; - is standard input")
    parser.add_argument(
        "--for", dest="target", choices=("hf", "deepspeed", "both"), help="who reads the file"
    )
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="data-parallel ranks, to check the batch sizes"
    )
    parser.add_argument("--deepspeed-version", metavar="VERSION", help="the version that will read the file")
    parser.add_argument("--device", choices=("npu", "any"), default="npu", help="any: no rules about Ascend")
    parser.add_argument("--fix", action="store_true", help="write the safe mends into the files")
    parser.add_argument(
        "--unsafe-fixes",
        action="store_true",
        help="with --fix, --diff or --output: also mends that may change what was meant",
    )
    parser.add_argument("--diff", action="store_true", help="print the mends as a diff and write nothing")
    parser.add_argument(
        "--output", metavar="PATH", help="write the mended file here (- is standard output), not in place"
    )
    parser.add_argument("--format", choices=("text", "json", "sarif"), default="text", help="of the findings")
    parser.add_argument(
        "--fail-on",
        choices=("error", "warning", "note"),
        default="error",
        help="exit with 1 from this on (default: error)",
    )
    parser.add_argument("--quiet", action="store_true", help="leave notes out of the text")
    parser.add_argument("--codes", action="store_true", help="list every code and exit")


def run(args: argparse.Namespace) -> int:
    """Lint, mend if asked, and report."""
    from ds_configs.documents import read_document
    from ds_configs.lint import Options, fix_document, lint_document

    if args.codes:
        _check_codes_alone(args)
        from ds_configs.lint.text_report import codes_as_text

        sys.stdout.write(codes_as_text())
        return 0
    _check(args)
    options = Options(args.target, args.world_size, args.deepspeed_version, args.device)
    documents = [read_document(path) for path in args.files]
    if not (args.fix or args.diff or args.output):
        reports = [lint_document(document, options) for document in documents]
        sys.stdout.write(_formatted(args, reports))
        return _status(args, reports)
    fixed = [fix_document(document, options, args.unsafe_fixes) for document in documents]
    _write(args, fixed)
    reports = [one.after for one in fixed]
    if not args.diff and args.output != "-":
        sys.stdout.write(_formatted(args, reports))
    return _status(args, reports)


def _check_codes_alone(args: argparse.Namespace) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name, default in vars(parser.parse_args([])).items():
        if name != "codes" and getattr(args, name) != default:
            what = "the files" if name == "files" else f"--{FLAGS.get(name, name).replace('_', '-')}"
            raise DsConfigError(f"--codes lists the codes and lints nothing; leave {what} out")


def _check(args: argparse.Namespace) -> None:
    if not args.files:
        raise DsConfigError("name a file to lint, or - for standard input")
    if args.output == "":
        raise DsConfigError("--output is empty; give a path, or - for standard output")
    chosen = [name for name in ("fix", "diff", "output") if getattr(args, name)]
    if len(chosen) > 1:
        raise DsConfigError(f"--{chosen[0]} and --{chosen[1]} exclude each other; choose one")
    if args.format != "text" and (args.diff or args.quiet):
        raise DsConfigError(
            f"--format {args.format} has no --{'diff' if args.diff else 'quiet'}; leave one out"
        )
    if args.quiet and (args.diff or args.output == "-"):
        raise DsConfigError("--quiet is about findings, and none are printed here; leave it out")
    if args.unsafe_fixes and not chosen:
        raise DsConfigError("--unsafe-fixes mends nothing by itself; add --fix, --diff or --output")
    if args.output and len(args.files) > 1:
        raise DsConfigError(f"--output takes one file, but {len(args.files)} are named")
    if args.files.count("-") > 1 or (args.fix and "-" in args.files):
        raise DsConfigError("standard input can be read once and not written; use --output or --diff")
    if args.output == "-" and args.format != "text":
        raise DsConfigError(
            "--output - prints the mended file, so the findings cannot be printed too; give a path"
        )


def _write(args: argparse.Namespace, fixed: list[Fixed]) -> None:
    for one in fixed:
        if args.diff:
            sys.stdout.write(one.diff())
        elif args.output == "-":
            sys.stdout.write(one.text)
        elif args.output:
            _save(args.output, one)
        elif one.changed:
            _save(one.before.path, one)


def _save(path: str, fixed: Fixed) -> None:
    if not fixed.before.document.text:
        raise DsConfigError(f"{fixed.before.path} cannot be mended: {fixed.before.findings[0].reason}")
    try:
        with open(path, "w", encoding=fixed.encoding, newline="") as stream:
            stream.write(fixed.text)
    except OSError as error:
        raise DsConfigError(
            f"{path} cannot be written: {error.strerror}; choose another place with --output"
        ) from error


def _formatted(args: argparse.Namespace, reports: list[Report]) -> str:
    if args.format == "json":
        from ds_configs.lint.json_report import as_json

        return as_json(reports)
    if args.format == "sarif":
        from ds_configs.lint.sarif import as_sarif

        return as_sarif(reports)
    from ds_configs.lint.text_report import as_text

    return as_text(reports, args.quiet)


def _status(args: argparse.Namespace, reports: list[Report]) -> int:
    from ds_configs.lint import SEVERITIES

    failing = SEVERITIES[: SEVERITIES.index(args.fail_on) + 1]
    found = any(finding.severity in failing for report in reports for finding in report.findings)
    return FOUND if found else 0
