"""Which ranks of the job live: those of this host by their processes, those of others by their beats."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from npu_plugins.diagnostics.hang import recorder
from npu_plugins.diagnostics.hang.board import Alarm, Board
from npu_plugins.diagnostics.hang.failure import Rank
from npu_plugins.diagnostics.hang.findings import Absence
from npu_plugins.diagnostics.hang.liveness import Neighbours, Process, started, this_place
from npu_plugins.diagnostics.hang.store import StoreGoneError

BEAT_SECONDS = 5.0
SILENT_SECONDS = 60.0
"""A host from which nothing is heard for so long is lost."""
DOUBT_SECONDS = 2.0
"""A rank that was asked to end (SIGTERM) is told of only if this one is not asked as well meanwhile. One with
a handler of its own may have been asked, and save for minutes: then only if it waits for that rank."""
NEEDED_SECONDS = 10.0
"""A wait for a rank that is gone, of which nobody knows how far it came, may last so long after its end."""
YOUNG_SECONDS = 30.0
"""For so long after its beginning, ranks of a job are looked for often."""
PAUSE_SECONDS = 10.0
"""Where more time lies between two looks, this process had been stopped, and the others' beats with it."""


@dataclass
class Roll:
    """The ranks of the job as one of them knows them."""

    board: Board
    who: Rank
    place: str = field(default_factory=this_place)
    neighbours: Neighbours = field(default_factory=Neighbours)
    gone: dict[int, Absence] = field(default_factory=dict)
    """Ranks whose process has ended, or whose host is silent, and how."""
    store_lost_at: float | None = None
    """Monotonic seconds since when the store does not answer."""
    _sequences: dict[int, dict[str, int] | None] = field(default_factory=dict)
    _gone_at: dict[int, float] = field(default_factory=dict)
    _doubts: dict[int, float] = field(default_factory=dict)
    _heads: bool = False
    _beats: dict[str, tuple[int, float]] = field(default_factory=dict)
    _last_beat: float = 0.0
    _last_look: float = 0.0
    _known: int = 1
    _begun: float = field(default_factory=time.monotonic)

    def join(self) -> None:
        """Say that this rank is here."""
        pid = os.getpid()
        self._heads = self.board.join(self.place, Process(self.who.rank, pid, started(pid)))

    def notice(self, ready: Iterable[int], now: float) -> Alarm | None:
        """Take in who came and who ended; returns an alarm if a rank was lost that did not say that it left.

        Args:
            ready: descriptors of `neighbours` that became readable.
            now: monotonic seconds.

        Raises:
            StoreGoneError: the store does not answer.
        """
        lost = [self._ended(process, absence, now) for process, absence in self._ends(ready)]
        for rank in [rank for rank, when in self._doubts.items() if now >= when]:
            del self._doubts[rank]
            lost.append(rank)
        found = next((rank for rank in lost if rank is not None), None)
        if found is not None:
            return self._lost(found)
        if self.store_lost_at is None:
            self._welcome(now)
            silent = self._listen(now)
            if silent is not None:
                return self._lost(silent)
        self._last_look = now
        return None

    def needed_and_gone(self, waits: dict[recorder.Pending, float], now: float) -> Alarm | None:
        """Return an alarm if this rank waits for one that ended without coming.

        Args:
            waits: calls that are not complete, with how long each has waited.
            now: monotonic seconds.
        """
        if not waits or not self.gone:
            return self._without_store(waits, now)
        members = {group.name: group.ranks for group in recorder.groups()}
        for call in waits:
            for rank in (self.gone.keys() - self._doubts.keys()) & set(members.get(call.group, ())):
                came = self._sequences.get(rank)
                certain = came is not None and not call.p2p and came.get(call.group, 0) < call.sequence
                unknown = came is None and min(waits[call], now - self._gone_at[rank]) >= NEEDED_SECONDS
                if certain or unknown:
                    return self._lost(rank)
        return self._without_store(waits, now)

    def lowest_living(self) -> bool:
        """Return whether no rank below this one is alive, as far as is known."""
        return all(rank in self.gone for rank in range(self.who.rank))

    def take_in(self, ready: Iterable[int]) -> None:
        """Note which neighbours ended, without an alarm: one is being answered."""
        for process, absence in self._ends(ready):
            self._ended(process, absence, time.monotonic())

    def _ends(self, ready: Iterable[int]) -> list[tuple[Process, Absence]]:
        """Return which neighbours ended and how."""
        seen = [descriptor for descriptor in ready if descriptor in self.neighbours.descriptors]
        return [self.neighbours.ended(descriptor) for descriptor in seen] + self.neighbours.ended_unseen()

    def _ended(self, process: Process, absence: Absence, now: float) -> int | None:
        """Note the end of a process; returns its rank if it is lost for certain."""
        rank = process.rank
        self._sequences[rank] = self._left(rank)
        if self._sequences[rank] is not None and absence.kind == "silent":
            absence = replace(absence, kind="left", detail="it said that it was done")
        self.gone[rank] = replace(absence, when=time.time(), host=_host(self.place), pid=process.pid)
        self._gone_at[rank] = now
        if absence.on_request:
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._doubts[rank] = now + DOUBT_SECONDS
            return None
        return rank if absence.kind in ("killed", "failed") else None

    def _left(self, rank: int) -> dict[str, int] | None:
        with suppress(StoreGoneError):
            return self.board.left(rank)
        return None

    def _lost(self, rank: int) -> Alarm:
        absence = self.gone[rank]
        how = {
            "killed": f"was killed by {absence.detail}",
            "failed": f"ended with {absence.detail}",
            "left": f"ended ({absence.detail}), but is waited for",
            "silent": f"is lost: {absence.detail}",
        }[absence.kind]
        whom = f"rank {rank} (pid {absence.pid} on {absence.host})" if absence.pid else f"rank {rank}"
        return Alarm(0, "peer lost", self.who.rank, f"{whom} {how}")

    def _welcome(self, now: float) -> None:
        """Watch the processes of this host that came since the last look."""
        if now - self._last_beat < BEAT_SECONDS and not self.expects_more(now):
            return
        for process in self.board.newcomers(self.place):
            if process.rank != self.who.rank:
                absence = self.neighbours.add(process)
                if absence is not None:
                    self._ended(process, absence, now)
                self._known += 1

    def expects_more(self, now: float) -> bool:
        """Return whether ranks of this host may still come in: not all are known, and the job is young."""
        size = os.environ.get("LOCAL_WORLD_SIZE", "")
        expected = int(size) if size.isdigit() else self.who.world_size
        return self._known < expected and now - self._begun < YOUNG_SECONDS

    def _listen(self, now: float) -> int | None:
        """Beat, and listen to the other hosts' beats; returns a rank of a host that is silent."""
        if now - self._last_look > PAUSE_SECONDS:
            self._beats = {}
        if now - self._last_beat < BEAT_SECONDS:
            return None
        self._last_beat = now
        self.board.beat(self.place)
        if not self._heads:
            return None
        for place in self.board.places():
            if place == self.place:
                continue
            count = self.board.beats(place)
            before, since = self._beats.get(place, (-1, now))
            self._beats[place] = (count, now if count != before else since)
            if count == before and now - since >= SILENT_SECONDS:
                lost = self._silent(place, now)
                if lost is not None:
                    return lost
        return None

    def _silent(self, place: str, now: float) -> int | None:
        """Take the ranks of a silent place for gone; returns the first of those that had not left."""
        lost = []
        for process in self.board.newcomers(place):
            came = self.board.left(process.rank)
            kind = "silent" if came is None else "left"
            self._sequences[process.rank], self._gone_at[process.rank] = came, now
            self.gone[process.rank] = Absence(
                kind, f"nothing heard of {_host(place)} for {SILENT_SECONDS:.0f} s", time.time(), _host(place)
            )
            if came is None:
                lost.append(process.rank)
        return min(lost, default=None)

    def _without_store(self, waits: dict[recorder.Pending, float], now: float) -> Alarm | None:
        """Return an alarm if this rank waits, and the store has gone with rank 0 on another host."""
        if self.store_lost_at is None or 0 in self.gone or self.who.rank == 0:
            return None
        neighbours = {process.rank for process in self.neighbours.processes}
        silence = now - self.store_lost_at
        if 0 in neighbours or min(silence, max(waits.values(), default=0.0)) < SILENT_SECONDS:
            return None
        detail = f"the store on its host has not answered for {silence:.0f} s"
        self.gone[0] = Absence("silent", detail, time.time())
        return self._lost(0)


def _host(place: str) -> str:
    return place.split(" ", 1)[0]
