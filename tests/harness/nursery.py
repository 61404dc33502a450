"""The process that imports torch once and forks ranks from itself.

Started by the pool as `python -m tests.harness.nursery FD`. It never touches a device and never starts a
thread, which is what makes its forks safe. Messages in: ("import", names), ("spawn", key, WorldSpec),
("dump", key): every rank writes its stacks, ("kill", key). Messages out: ("ready", error or ""),
("spawned", key, pids), ("exited", key, rank, status).
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tests.harness.rank import die_with_parent, live
from tests.harness.spec import WorldSpec

LISTEN_BACKLOG = 64
THREAD_END_SECONDS = 2.0
ZOMBIE_SECONDS = 0.1
"""A rank that ended badly is not reaped at once, as launchers look at theirs now and then: by its zombie
other ranks see how it ended."""


@dataclass
class Nursery:
    """The forked ranks and the connection to the pool."""

    control: Connection
    children: dict[int, tuple[int, int]] = field(default_factory=dict)  # pid -> (world key, rank)

    def serve(self) -> None:
        """Obey the pool until it goes away; then take all ranks down."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        try:
            while True:
                ready = wait([self.control, wake_read])
                if wake_read in ready:
                    os.read(wake_read, 4096)
                    self._reap()
                if self.control in ready:
                    self._obey(self.control.recv())
        except (EOFError, BrokenPipeError):
            for pid in self.children:
                _kill_session(pid)

    def _obey(self, message: tuple) -> None:
        match message:
            case ("import", names):
                self.control.send(("ready", _import_all(names)))
            case ("spawn", key, spec):
                self.control.send(("spawned", key, self._spawn(key, spec)))
            case ("dump", key):
                for pid in self._ranks_of(key):
                    os.kill(pid, signal.SIGUSR1)
            case ("kill", key):
                for pid in self._ranks_of(key):
                    _kill_session(pid)

    def _ranks_of(self, key: int) -> list[int]:
        return [pid for pid, (owner, _) in self.children.items() if owner == key]

    def _spawn(self, key: int, spec: WorldSpec) -> list[int]:
        # What was imported here lives on in every rank: a rank's garbage collector that walked over it, again
        # and again, took a quarter of the rank's time and made it copy the memory that it shares by fork.
        gc.freeze()
        # The socket of the world's store is made here and inherited: no other process can take its port.
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(LISTEN_BACKLOG)
            pids = []
            for rank in range(spec.size):
                pid = os.fork()
                if pid == 0:
                    self._become_rank(spec, rank, listener)
                self.children[pid] = (key, rank)
                pids.append(pid)
        return pids

    def _become_rank(self, spec: WorldSpec, rank: int, listener: socket.socket) -> None:
        """Never returns: a forked rank must not run the nursery's loop or its exit handlers."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.control.close()
            code = live(spec, rank, listener)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _reap(self) -> None:
        # A rank is looked at before it is reaped: while it is a zombie its number names no other session, so
        # the children it left can be killed safely.
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            _kill_session(seen.si_pid)
            if (seen.si_code, seen.si_status) != (os.CLD_EXITED, 0):
                time.sleep(ZOMBIE_SECONDS)
            _, status = os.waitpid(seen.si_pid, 0)
            key, rank = self.children.pop(seen.si_pid)
            self.control.send(("exited", key, rank, os.waitstatus_to_exitcode(status)))


def _kill_session(pid: int) -> None:
    """SIGKILL a rank and its children (it leads a session), or the rank alone if it is too young to lead."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _import_all(names: tuple[str, ...]) -> str:
    """Import the modules; the traceback of the first failure, or ''."""
    try:
        for name in names:
            importlib.import_module(name)
    except BaseException:
        return traceback.format_exc()
    if count := _other_threads():
        return f"Importing {names} left {count} threads running: ranks can no longer be forked safely."
    return ""


def _other_threads() -> int:
    """Threads beside this one, once those that are just ending (of a simulator build) had their time to."""
    tasks = Path("/proc/self/task")
    deadline = time.monotonic() + THREAD_END_SECONDS
    while tasks.exists() and len(list(tasks.iterdir())) > 1:
        if time.monotonic() > deadline:
            return len(list(tasks.iterdir())) - 1
        time.sleep(0.01)
    return 0


def main() -> None:
    """Entry point of the nursery process."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Nursery(Connection(int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
