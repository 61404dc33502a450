"""What the checks of a run have found, one line of JSON for each, in its folder ``checks``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_plugins.diagnostics.errors import DiagnosticsError

FOLDER = "checks"


def append_record(run: str | Path, kind: str, record: Mapping[str, Any]) -> None:
    """Add a record to ``<run>/checks/<kind>.jsonl``; one rank does so."""
    folder = Path(run, FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{kind}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def start_records(run: str | Path, kind: str, step: int) -> None:
    """Forget the records of steps after `step`, from which a run begins or goes on."""
    file = Path(run, FOLDER, f"{kind}.jsonl")
    if file.is_file():
        kept = [line for line in file.read_text(encoding="utf-8").splitlines() if _step(line) <= step]
        file.write_text("".join(f"{line}\n" for line in (kept if step else [])), encoding="utf-8")


def read_records(run: str | Path, kind: str, flag: str) -> list[dict[str, Any]]:
    """Return a run's records of a kind, the oldest first.

    Args:
        run: its output_dir.
        kind: gradients, parameters or memory.
        flag: with which a run writes them, for the sentence.

    Raises:
        DiagnosticsError: there are none, or the file is damaged.
    """
    file = Path(run, FOLDER, f"{kind}.jsonl")
    if not file.is_file():
        raise DiagnosticsError(
            f"{file} does not exist; train with {flag} N, and give the output_dir of that run"
        )
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            found.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise DiagnosticsError(
                f"{file}, line {number}, is no record ({error}); delete that line"
            ) from error
    if not found:
        raise DiagnosticsError(f"{file} is empty: no step has been checked; train for {flag} N steps or more")
    return found


def _step(line: str) -> int:
    try:
        return int(json.loads(line)["step"] or 0)
    except (ValueError, KeyError, TypeError):
        return 0
