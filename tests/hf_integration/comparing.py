"""What a run logs, compared with what the plain Trainer logs in one process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.hf_integration.divided import Record

TOLERANCE = 1e-5
CLOCK = ("runtime", "per_second", "tokens_per_s", "preparation_time")


def timed(key: str) -> bool:
    """Whether a value of a log depends on the machine and not on the training."""
    return key.endswith(CLOCK) or "memory" in key or "_mem_" in key


def same(found: Any, wanted: Any, where: str = "") -> None:
    """Assert that nested results are the same but for rounding, not looking at times."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), f"{where}: {found} and not {wanted}"
        for key, value in wanted.items():
            if not timed(key):
                same(found[key], value, f"{where}, {key}")
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), f"{where}: {found} and not {wanted}"
        for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
            same(one, other, f"{where}, {index}")
    else:
        if isinstance(wanted, float):
            wanted = pytest.approx(wanted, rel=TOLERANCE, abs=1e-9, nan_ok=True)
        assert found == wanted, f"{where}: {found} and not {wanted}"


def same_log(records: list[Record], wanted: Record, ignored: Iterable[str] = ()) -> None:
    """Assert that all ranks logged, and returned, what one process did.

    Args:
        records: of the ranks.
        wanted: of one process.
        ignored: keys of the log that may differ, besides times.
    """
    passed_over = set(ignored)
    for rank, record in enumerate(records):
        assert len(record.log) == len(wanted.log), f"rank {rank}: {record.log} and not {wanted.log}"
        for entry, other in zip(record.log, wanted.log, strict=True):
            same(_plain(entry, passed_over), _plain(other, passed_over), f"rank {rank}, step {other['step']}")
        same(record.after, wanted.after, f"rank {rank}, after it")


def _plain(entry: dict[str, Any], ignored: set[str]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if not timed(key) and key not in ignored}
