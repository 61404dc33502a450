"""The text to train on where none is named: the source code of Python's standard library."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import datasets

_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


def standard_library_files() -> Iterator[Path]:
    """Yield the source files of Python's standard library, sorted, without tests and installed packages.

    Directories are read as they come up: who wants the first few files does not wait for all of them.
    """
    yield from _sources_below(Path(sysconfig.get_path("stdlib")))


def _sources_below(folder: Path) -> Iterator[Path]:
    """Yield the source files below ``folder`` in the order of their paths."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in _SKIPPED:
                yield from _sources_below(Path(entry.path))
        elif entry.name.endswith(".py"):
            yield Path(entry.path)


def standard_library(max_bytes: int) -> datasets.Dataset:
    """Return up to ``max_bytes`` bytes of the standard library's source, one document per module.

    The last document is cut to meet the limit. The order is that of the sorted paths, the same on every rank.
    """
    documents, left = [], max_bytes
    for path in standard_library_files():
        source = path.read_bytes()[:left].decode("utf-8", errors="ignore")
        if source:
            documents.append(source)
            left -= len(source.encode("utf-8"))
        if left <= 0:
            break
    return datasets.Dataset.from_dict({"text": documents})
