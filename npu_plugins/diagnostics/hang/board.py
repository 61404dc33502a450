"""What the ranks tell each other when something is wrong: by the job's store, and by files in one folder.

The store reaches other hosts; the files are there when the store went with rank 0. Either alone is enough
for the ranks of one host.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from npu_plugins.diagnostics.errors import DiagnosticsError
from npu_plugins.diagnostics.hang.dump import RankDump
from npu_plugins.diagnostics.hang.files import save_dump
from npu_plugins.diagnostics.hang.liveness import Process
from npu_plugins.diagnostics.hang.store import OwnStore, StoreGoneError

REPORT = "report.txt"
TOGETHER_SECONDS = 5.0
"""For so long a rank that may end waits until the others know as well, as the store may end with it."""
_PREFIX = "npu_plugins.hang"


@dataclass(frozen=True)
class Alarm:
    """One rank's word that all ranks shall dump what they know."""

    number: int
    """Which alarm of the job, from 1."""
    reason: str
    """One of `dump.REASONS`."""
    rank: int
    sentence: str

    @property
    def ends_the_job(self) -> bool:
        """Whether the ranks end after the report."""
        return self.reason not in ("asked", "signal")


class Board:
    """The store and the folder of one job, as one rank uses them. Only the watch's thread may."""

    def __init__(self, store: Any, session: str, rank: int, reports: Path) -> None:
        """Take the job's store, and the folder in which the job's own folder is made.

        Args:
            store: the torch.distributed Store of the job.
            session: name of the process group that no other has or had; see `Greeting`.
            rank: of this process.
            reports: the folder of all jobs' reports; it is made only when something is wrong.
        """
        self.rank = rank
        self.store = OwnStore(store, f"{_PREFIX}.{session}")
        self._seen: dict[str, int] = {}
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self.folder = Path(self._first("folder", str(reports.absolute() / name)))

    def folder_of(self, alarm: Alarm) -> Path:
        """Return where an alarm's dumps and report are."""
        name = self.folder.name if alarm.number == 1 else f"{self.folder.name}-{alarm.number}"
        return self.folder.with_name(name)

    def join(self, place: str, process: Process) -> bool:
        """Say that a rank is here; returns True for the first of its place, which beats for it."""
        slot = self.store.add(f"ranks at {place}", 1)
        self.store.set(f"rank at {place} {slot}", json.dumps(asdict(process)))
        if slot == 1:
            self.store.set(f"place {self.store.add('places', 1)}", place)
        return slot == 1

    def newcomers(self, place: str) -> list[Process]:
        """Return the processes of a place that were not returned before."""
        known = self._seen.get(place, 0)
        found = []
        count = self.store.add(f"ranks at {place}", 0)
        while known < count and (text := self.store.get(f"rank at {place} {known + 1}")) is not None:
            known += 1
            found.append(Process(**json.loads(text)))
        self._seen[place] = known
        return found

    def places(self) -> list[str]:
        """Return the places that have ranks, in the order in which they came."""
        keys = [f"place {number}" for number in range(1, self.store.add("places", 0) + 1)]
        return [place for place in map(self.store.get, keys) if place is not None]

    def beat(self, place: str) -> None:
        """Say that the ranks of a place are alive."""
        self.store.add(f"beats of {place}", 1)

    def beats(self, place: str) -> int:
        """Return how often a place has said so."""
        return self.store.add(f"beats of {place}", 0)

    def leave(self, sequences: Mapping[str, int]) -> None:
        """Say that this rank is done with its process groups, and how many collectives it made in each."""
        self.store.set(f"left {self.rank}", json.dumps(dict(sequences)))
        self.store.add("ranks that left", 1)

    def left(self, rank: int) -> dict[str, int] | None:
        """Return what a rank said when it left; None if it did not."""
        found = self.store.get(f"left {rank}")
        return None if found is None else dict(json.loads(found))

    def anyone_left(self) -> bool:
        """Return whether a rank has said so."""
        return self.store.add("ranks that left", 0) > 0

    def fail(self, kind: str) -> None:
        """Say that this rank ends with an exception of some kind."""
        self.store.add(f"failed with {kind}", 1)

    def all_fail_alike(self, kind: str, world_size: int) -> bool:
        """Return whether every rank ends with an exception of that kind, once all know (asked once)."""
        if self.store.add(f"failed with {kind}", 0) != world_size:
            return False
        deadline = time.monotonic() + TOGETHER_SECONDS
        with suppress(StoreGoneError):  # its holder has seen that all know
            know = self.store.add(f"know of {kind}", 1)
            while know < world_size and time.monotonic() < deadline:
                time.sleep(0.02)
                know = self.store.add(f"know of {kind}", 0)
        return True

    def sound(self, alarm: Alarm) -> Alarm:
        """Tell all ranks; returns the alarm that stands, which is another rank's if that was first."""
        text = json.dumps(asdict(alarm))
        found = self._first(f"alarm {alarm.number}", text)
        with suppress(OSError):  # a folder that cannot be written: the store is there as well
            self.folder_of(alarm).mkdir(parents=True, exist_ok=True)
            found = _first_file(self.folder_of(alarm) / "alarm.json", found)
        return Alarm(**json.loads(found))

    def alarm(self, number: int) -> Alarm | None:
        """Return an alarm by its number, once a rank has sounded it."""
        found = self._ask(f"alarm {number}")
        if found is None:
            path = self.folder_of(Alarm(number, "asked", 0, "")) / "alarm.json"
            found = _text(path)
        return Alarm(**json.loads(found)) if found else None

    def publish(self, alarm: Alarm, dump: RankDump) -> None:
        """Give this rank's dump to whoever writes the report."""
        with suppress(OSError):
            save_dump(self.folder_of(alarm), dump)
        with suppress(StoreGoneError):
            self.store.set(f"dump {alarm.number} {dump.rank}", dump.to_json())

    def dump_of(self, alarm: Alarm, rank: int) -> RankDump | None:
        """Return a rank's dump once it is there."""
        text = _text(self.folder_of(alarm) / f"rank{rank}.json") or self._ask(f"dump {alarm.number} {rank}")
        with suppress(DiagnosticsError):
            return RankDump.from_json(text) if text else None
        return None

    def claim_report(self, alarm: Alarm) -> bool:
        """Return whether this rank shall write the report; only the first that asks shall."""
        mine = str(self.rank)
        found = self._first(f"writer {alarm.number}", mine)
        with suppress(OSError):
            found = _first_file(self.folder_of(alarm) / "writer", found)
        return found == mine

    def report_done(self, alarm: Alarm, text: str) -> None:
        """Put the report where all ranks find it."""
        with suppress(OSError):
            (self.folder_of(alarm) / REPORT).write_text(text, encoding="utf-8")
        with suppress(StoreGoneError):
            self.store.set(f"report {alarm.number}", "done")

    def is_reported(self, alarm: Alarm) -> bool:
        """Return whether the report is written."""
        return (self.folder_of(alarm) / REPORT).exists() or self._ask(f"report {alarm.number}") is not None

    def _first(self, key: str, value: str) -> str:
        """As `OwnStore.first`; without a store, `value`."""
        try:
            return self.store.first(key, value)
        except StoreGoneError:
            return value

    def _ask(self, key: str) -> str | None:
        with suppress(StoreGoneError):
            return self.store.get(key)
        return None


def _first_file(path: Path, text: str) -> str:
    """Write a file unless it is there; returns what it holds."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    with suppress(FileExistsError):
        os.link(aside, path)
    aside.unlink()
    return path.read_text(encoding="utf-8")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
