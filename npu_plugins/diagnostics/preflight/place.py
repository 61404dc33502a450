"""Where a rank runs: its host, its process, and which other ranks share them."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Place:
    """Where one rank runs."""

    rank: int
    host: str
    """Its name, for people."""
    machine: str
    """The same on two ranks if, and only if, they see the same processes and the same devices."""
    pid: int
    started: int
    """When the process started, in the kernel's ticks; 0 where that is not known. A number used again has
    another."""
    local_rank: int

    @classmethod
    def here(cls, rank: int, environ: Mapping[str, str] = os.environ) -> Place:
        """Return the place of this process, which is `rank`."""
        host = socket.gethostname()
        # Hosts may have the same name ("localhost"), and containers of one host devices of their own.
        boot = _read("/proc/sys/kernel/random/boot_id").strip()
        try:
            container = os.readlink("/proc/self/ns/mnt") + os.readlink("/proc/self/ns/pid")
        except OSError:
            container = ""
        local = int(environ.get("LOCAL_RANK") or 0)
        pid = os.getpid()
        return cls(rank, host, f"{host} {boot[:8]} {container}".strip(), pid, _started(pid), local)

    def to_message(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    def has_ended(self) -> bool:
        """Return whether the process has ended, asked on its own machine."""
        fields = _stat(self.pid)
        if not fields:
            return Path("/proc/self/stat").exists()
        # A zombie has ended: only its parent has not asked for its status yet.
        return fields[0] in "ZX" or (bool(self.started) and int(fields[19]) != self.started)


def ended_here(ranks: Collection[int], places: Mapping[int, Place], here: Place) -> list[int]:
    """Return those of `ranks` that run on this machine and whose processes have ended."""
    return [
        rank
        for rank in ranks
        if rank in places and places[rank].machine == here.machine and places[rank].has_ended()
    ]


def guessed_hosts(places: Mapping[int, Place], world_size: int) -> dict[int, str]:
    """Return the hosts of all ranks, those not met yet by the ranks that were started with them.

    Launchers number the ranks of a host one after another, from local rank 0.
    """
    hosts = {rank: place.host for rank, place in places.items()}
    first = {rank: rank - place.local_rank for rank, place in places.items()}
    for rank in range(world_size):
        if rank in hosts:
            continue
        before = [other for other in first if other < rank]
        after = [other for other in first if other > rank]
        nearest = max(before, default=None), min(after, default=None)
        if nearest[1] is not None and first[nearest[1]] <= rank:  # the next one counts from below this one
            hosts[rank] = hosts[nearest[1]]
        elif nearest[0] is not None and nearest[1] is None and len(set(first.values())) == 1:
            hosts[rank] = hosts[nearest[0]]
    return hosts


def _started(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty where there is none."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
