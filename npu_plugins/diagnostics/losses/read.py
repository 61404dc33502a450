"""Reading a run's losses from the files that it leaves behind."""

from __future__ import annotations

import ast
import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_plugins.diagnostics.errors import DiagnosticsError

STATE, LOG = "trainer_state.json", "log.jsonl"
EVENTS = "events.out.tfevents.*"
_ENTRY = re.compile(r"\{'[^{}]*\}")
"""A log entry as the Trainer prints it."""
_DEEPSPEED = re.compile(r"\bsteps?[:=]\s*(\d+),?\s+loss[:=]\s*([-+.\deE]+|nan|inf)")
"""A line of DeepSpeed's pipeline engine."""


@dataclass(frozen=True)
class Curve:
    """Losses over steps."""

    source: str
    """The file."""
    steps: tuple[int, ...]
    """Rising; an entry is the mean of the steps since the one before, as the Trainer logs it."""
    values: tuple[float, ...]
    digits: int
    """Most decimals that a value has, by which it may be rounded."""
    numbered: bool = True
    """Whether the steps are the run's; a printed log has none, whose entries are counted."""

    def at(self, step: int, since: int) -> float:
        """Return the mean of the steps after `since` to `step`; both have entries (or `since` is 0)."""
        total, weight, before = 0.0, 0, 0
        for own, value in zip(self.steps, self.values, strict=True):
            if since < own <= step:
                total += value * (own - max(before, since))
                weight += own - max(before, since)
            before = own
        return total / weight


def read_curve(path: str | Path, key: str = "loss") -> Curve:
    """Return the losses of a run.

    Args:
        path: the run's output_dir, one of its checkpoints, or a file: trainer_state.json, JSON lines, CSV
            with a column ``step``, a log as printed, a folder or file of TensorBoard.
        key: of the entries; with TensorBoard, ``train/loss`` is found as well.

    Raises:
        DiagnosticsError: there is no such file, or no loss in it.
    """
    file = _file_of(Path(path))
    try:
        pairs, numbered = _pairs(file, key)
    except (OSError, ValueError, OverflowError, TypeError, KeyError, AttributeError, csv.Error) as error:
        raise DiagnosticsError(
            f"{file} cannot be read as losses ({type(error).__name__}: {error}); give a run's output_dir, "
            "its trainer_state.json, JSON lines, a CSV with step and loss, or its log"
        ) from error
    found: dict[int, tuple[float, int]] = {}
    for step, value, digits in pairs:
        if step > 0:  # steps are counted from 1; what was logged before has trained nothing
            found[step] = (value, digits)  # a run that went on from a checkpoint has logged some steps twice
    if not found:
        raise DiagnosticsError(
            f"{file} has no {key!r}; name another entry with --key, or lower the run's logging_steps"
        )
    steps = tuple(sorted(found))
    digits = max(found[step][1] for step in steps)
    return Curve(str(file), steps, tuple(found[step][0] for step in steps), digits, numbered)


def _file_of(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise DiagnosticsError(f"{path} does not exist; give a run's output_dir, or a file with its losses")
    for name in (STATE, LOG):
        if (path / name).is_file():
            return path / name
    states = [file for file in path.glob(f"checkpoint-*/{STATE}") if file.parent.name[11:].isdigit()]
    if states:
        return max(states, key=lambda file: int(file.parent.name[11:]))
    events = sorted(path.rglob(EVENTS), key=lambda file: file.stat().st_mtime)
    if events:
        return events[-1]
    raise DiagnosticsError(
        f"{path} holds neither {STATE} nor {LOG}, no checkpoint and no events of TensorBoard; give the file "
        "with the losses itself"
    )


def _pairs(file: Path, key: str) -> tuple[list[tuple[int, float, int]], bool]:
    if "tfevents" in file.name:
        return list(_of_tensorboard(file, key)), True
    text = file.read_text(encoding="utf-8", errors="replace")
    if file.suffix == ".csv":
        return list(_of_entries(csv.DictReader(text.splitlines()), key)), True
    if file.suffix == ".jsonl":
        return list(_of_entries((json.loads(line) for line in text.splitlines() if line.strip()), key)), True
    if file.suffix == ".json":
        body = json.loads(text)
        return list(_of_entries(body["log_history"] if isinstance(body, dict) else body, key)), True
    return _of_print(text, key)


def _of_entries(entries: Iterable[Mapping[str, Any]], key: str) -> Iterator[tuple[int, float, int]]:
    for entry in entries:
        if entry.get(key) not in (None, "") and entry.get("step") not in (None, ""):
            yield int(float(entry["step"])), float(entry[key]), _digits(entry[key])


def _of_print(text: str, key: str) -> tuple[list[tuple[int, float, int]], bool]:
    by_engine = [(int(step), float(loss), _digits(loss)) for step, loss in _DEEPSPEED.findall(text)]
    if by_engine:
        return by_engine, True
    found: list[tuple[int, float, int]] = []
    for match in _ENTRY.finditer(text):
        try:
            entry = ast.literal_eval(re.sub(r"(?<![\w'])(nan|-?inf)(?![\w'])", r"'\1'", match.group()))
        except (ValueError, SyntaxError):
            continue
        if isinstance(entry, dict) and key in entry:
            found.append((len(found) + 1, float(entry[key]), _digits(entry[key])))
    return found, False


def _of_tensorboard(file: Path, key: str) -> Iterator[tuple[int, float, int]]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise DiagnosticsError(
            f"{file} needs TensorBoard to be read; `pip install tensorboard`, or give the run's {STATE}"
        ) from error
    events = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
    names = events.Tags()["scalars"]
    name = key if key in names else f"train/{key}"
    for event in events.Scalars(name) if name in names else ():
        yield event.step, event.value, 7


def _digits(value: Any) -> int:
    text = str(value)
    if not math.isfinite(float(value)) or "e" in text.lower():
        return 0 if not math.isfinite(float(value)) else 17
    return len(text.partition(".")[2])
