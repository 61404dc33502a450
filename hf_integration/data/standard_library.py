"""The text to train on where none is named: the source code of Python's standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import datasets


def standard_library_files() -> Iterator[Path]:
    """Yield the source files of Python's standard library, sorted, without tests and installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
        if not skipped.intersection(path.relative_to(root).parts):
            yield path


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
