"""`npu-plugins checkpoint inspect`, `verify` and `convert`."""

from __future__ import annotations

import argparse
import contextlib
import sys

from npu_plugins.checkpoint.convert import convert
from npu_plugins.checkpoint.describe import describe, format_bytes
from npu_plugins.checkpoint.kinds import recognise
from npu_plugins.checkpoint.verify import verify


def _only_our_words() -> contextlib.AbstractContextManager[object]:
    """Keep standard output for results: DeepSpeed logs to it what it finds missing when it is imported."""
    return contextlib.redirect_stdout(sys.stderr)


def inspect_command(options: argparse.Namespace) -> int:
    """Say what a checkpoint is."""
    with _only_our_words():
        told = describe(options.directory)
    print(told.to_json() if options.json else told)
    return 0


def verify_command(options: argparse.Namespace) -> int:
    """Read a checkpoint through; name each faulty file. Returns 1 if there is one."""
    with _only_our_words():
        found = recognise(options.directory)
        faults = verify(options.directory)
    for fault in faults:
        print(fault)
    if faults:
        print(f"{found.path}: {len(faults)} of its files are faulty")
        return 1
    sizes = [path.stat().st_size for path in found.path.rglob("*") if path.is_file()]
    print(f"{found.path}: {found.kind.value}, {len(sizes)} files, {format_bytes(sum(sizes))}, all good")
    return 0


def convert_command(options: argparse.Namespace) -> int:
    """Convert a checkpoint, and say what was made."""
    with _only_our_words():
        made = convert(
            options.source,
            options.destination,
            options.to,
            tp=options.tp,
            pp=options.pp,
            dtype=options.dtype,
            config=options.config,
        )
    for note in made.notes:
        print(f"note: {note}")
    print(f"{made.path}: {made.parameters:,} parameters from {made.source.path} ({made.source.kind.value})")
    return 0
