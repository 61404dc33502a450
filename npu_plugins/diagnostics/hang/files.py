"""The folder of a report: a dump for each rank, what is known of ranks without one, and the report itself."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from npu_plugins.diagnostics.errors import DiagnosticsError
from npu_plugins.diagnostics.hang.dump import RankDump
from npu_plugins.diagnostics.hang.findings import Absence

_DUMP = re.compile(r"rank(\d+)\.json")
_ABSENT = "absent.json"


def save_dump(directory: Path, dump: RankDump) -> Path:
    """Write `rank<rank>.json` into `directory`, which is made if need be; a reader never sees half of it."""
    return _write(directory / f"rank{dump.rank}.json", dump.to_json())


def save_absences(directory: Path, absent: Mapping[int, Absence]) -> Path:
    """Write what is known of the ranks that gave no dump."""
    found = {str(rank): asdict(absence) for rank, absence in absent.items()}
    return _write(directory / _ABSENT, json.dumps(found, indent=1))


def load(directory: Path) -> tuple[dict[int, RankDump], dict[int, Absence]]:
    """Read what `save_dump` and `save_absences` wrote, by rank; one whose dump is damaged has none.

    Raises:
        DiagnosticsError: no dump in `directory` can be read, or absent.json is faulty.
    """
    if not directory.is_dir():
        raise DiagnosticsError(f"{directory} is no folder; give the one that holds a job's rank<rank>.json")
    dumps, absent = {}, _read_absences(directory / _ABSENT)
    for path in directory.iterdir():
        found = _DUMP.fullmatch(path.name)
        if found:
            try:
                dumps[int(found[1])] = _read_dump(path)
            except DiagnosticsError as error:
                absent.setdefault(int(found[1]), Absence("silent", f"its dump is damaged: {error}"))
    if not dumps and absent:
        raise DiagnosticsError(f"{directory} holds no dump that can be read; {absent[min(absent)].detail}")
    if not dumps:
        raise DiagnosticsError(f"{directory} holds no rank<rank>.json; give the folder of a job's dumps")
    return dict(sorted(dumps.items())), dict(sorted(absent.items()))


def _read_dump(path: Path) -> RankDump:
    try:
        return RankDump.from_json(path.read_text(encoding="utf-8"))
    except DiagnosticsError as error:
        raise DiagnosticsError(f"{path}: {error}") from error
    except (OSError, UnicodeError) as error:
        raise DiagnosticsError(f"{path} is no dump of a rank ({error}); take it out of the folder") from error


def _read_absences(path: Path) -> dict[int, Absence]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {int(rank): Absence(**absence) for rank, absence in found.items()}
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise DiagnosticsError(
            f"{path} does not say which ranks gave no dump ({type(error).__name__}: {error}); delete it to "
            "make the report of the dumps alone"
        ) from error


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text + "\n", encoding="utf-8")
    aside.replace(path)
    return path
