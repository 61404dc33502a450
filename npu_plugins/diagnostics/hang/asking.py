"""Asking the ranks of this host for a report of what they do, from outside of the job."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from npu_plugins.diagnostics.errors import DiagnosticsError
from npu_plugins.diagnostics.hang.wakeup import SIGNAL
from npu_plugins.diagnostics.hang.watch import REPORTS, REPORTS_DEFAULT


@dataclass(frozen=True)
class WatchedProcess:
    """A process that answers SIGUSR2."""

    pid: int
    rank: str
    """As its launcher set it; empty if none did."""
    reports: Path
    """Where its job's folder will be."""


def watched_ranks() -> list[WatchedProcess]:
    """Return the launched ranks of this user on this host that answer SIGUSR2."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real == os.getuid():
                watched = _watched(process, process.environ())
                if watched is not None and watched.rank:
                    found.append(watched)
    return found


def ask(pids: Iterable[int]) -> list[WatchedProcess]:
    """Ask processes for a report, which their jobs write and go on.

    One rank of a job is enough: it passes the question on to the others.

    Raises:
        DiagnosticsError: there is no such process, or it would be ended by the signal.
    """
    found = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            watched = _watched(process, process.environ())
        except (psutil.Error, ValueError) as error:
            why = "it is another user's" if isinstance(error, psutil.AccessDenied) else error
            raise DiagnosticsError(
                f"Process {pid} cannot be asked ({why}); give the pid of a rank"
            ) from error
        if watched is None:
            raise DiagnosticsError(
                f"Process {pid} ({process.name()}) does not handle SIGUSR2, which would end it; give the pid "
                "of a rank with the hang watch (NPU_PLUGINS_HANG_WATCH is not 0)"
            )
        found.append(watched)
    for watched in found:
        os.kill(watched.pid, SIGNAL)
    return found


def _watched(process: psutil.Process, environ: Mapping[str, str]) -> WatchedProcess | None:
    if not _catches(process.pid):
        return None
    reports = Path(process.cwd()) / (environ.get(REPORTS) or REPORTS_DEFAULT)
    return WatchedProcess(process.pid, environ.get("RANK", ""), reports)


def _catches(pid: int) -> bool:
    """Whether a process has a handler for the signal, from the mask SigCgt of /proc/<pid>/status."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False
