"""Which processes of this host have ended, known the moment they do, and how they ended."""

from __future__ import annotations

import fcntl
import os
import platform
import signal
import struct
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from npu_plugins.diagnostics.hang.findings import Absence

# linux/pidfd.h: PIDFD_GET_INFO of a struct pidfd_info of 64 bytes; Linux 6.15 fills in how the process ended,
# also for one that its parent has reaped already.
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_SIZE = 64
_PIDFD_INFO_EXIT = 1 << 3
_EXIT_CODE_OFFSET = 60
_STATE, _START_TIME, _EXIT_CODE = 0, 19, 49  # fields of /proc/<pid>/stat, counted behind the name
_DEAD = ("Z", "X")


@dataclass(frozen=True)
class Process:
    """A rank's process, told apart from a later one of the same number by when it started."""

    rank: int
    pid: int
    started: int


@dataclass
class Neighbours:
    """Processes of this host that are watched; `descriptors` become readable when they end.

    Linux before 5.3, which hosts of NPUs often run, has no descriptors of processes: there `polled` is looked
    through. Without /proc (not Linux) nobody can be watched.
    """

    descriptors: dict[int, Process] = field(default_factory=dict)
    polled: list[Process] = field(default_factory=list)

    @property
    def processes(self) -> tuple[Process, ...]:
        """All that are watched."""
        return (*self.descriptors.values(), *self.polled)

    def add(self, process: Process) -> Absence | None:
        """Watch a process; returns how it ended if it is gone already, else None."""
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return ending(None)
        except (OSError, AttributeError):  # the kernel, a sandbox or this Python has no pidfd
            if not started(os.getpid()):
                return None
            if _is_gone(process):
                return ending(_status_of_zombie(process))
            self.polled.append(process)
            return None
        if started(process.pid) != process.started:
            os.close(descriptor)
            return ending(None)
        self.descriptors[descriptor] = process
        return None

    def ended(self, descriptor: int) -> tuple[Process, Absence]:
        """Return which process ended and how, and watch it no more."""
        process = self.descriptors.pop(descriptor)
        status = _status_by_descriptor(descriptor)
        if status is None:
            status = _status_of_zombie(process)
        os.close(descriptor)
        return process, ending(status)

    def ended_unseen(self) -> list[tuple[Process, Absence]]:
        """Return which of `polled` ended and how, and watch them no more."""
        gone = [process for process in self.polled if _is_gone(process)]
        self.polled = [process for process in self.polled if process not in gone]
        return [(process, ending(_status_of_zombie(process))) for process in gone]

    def signal(self, number: int, ranks: Container[int] | None = None) -> None:
        """Send a signal to those that live; None: to all ranks."""
        for descriptor, process in self.descriptors.items():
            if ranks is None or process.rank in ranks:
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(descriptor, number)
        for process in self.polled:
            if (ranks is None or process.rank in ranks) and not _is_gone(process):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, number)

    def close(self) -> None:
        """Watch nobody any more."""
        self.polled = []
        while self.descriptors:
            os.close(self.descriptors.popitem()[0])


def this_place() -> str:
    """Return a name for where process numbers mean the same: the host, its boot, its pid namespace."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{platform.node()} {boot} {namespace}"


def started(pid: int) -> int:
    """Return when a process started, in ticks since the boot; 0 if there is none, or /proc is not there."""
    fields = _stat(pid)
    return int(fields[_START_TIME]) if fields else 0


def ending(status: int | None) -> Absence:
    """Say how a process ended from its wait status; None: nobody knows."""
    if status is None:
        return Absence("silent", "its process is gone")
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return Absence("left", "status 0")
    if code > 0:
        return Absence("failed", f"status {code}")
    try:
        return Absence("killed", signal.Signals(-code).name)
    except ValueError:  # a real-time signal
        return Absence("killed", f"signal {-code}")


def _status_by_descriptor(descriptor: int) -> int | None:
    info = bytearray(_PIDFD_INFO_SIZE)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _PIDFD_GET_INFO, info)
    except OSError:  # an older kernel
        return None
    (mask,) = struct.unpack_from("Q", info, 0)
    return struct.unpack_from("i", info, _EXIT_CODE_OFFSET)[0] if mask & _PIDFD_INFO_EXIT else None


def _is_gone(process: Process) -> bool:
    fields = _stat(process.pid)
    return not fields or int(fields[_START_TIME]) != process.started or fields[_STATE] in _DEAD


def _status_of_zombie(process: Process) -> int | None:
    """The wait status of a process that its parent has not reaped yet."""
    fields = _stat(process.pid)
    its_own = bool(fields) and int(fields[_START_TIME]) == process.started
    return int(fields[_EXIT_CODE]) if its_own and fields[_STATE] in _DEAD else None


def _stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
