"""How a neighbour ended is known the moment it does, whether or not its parent has reaped it."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time

import pytest

from npu_plugins.diagnostics.hang.findings import Absence
from npu_plugins.diagnostics.hang.liveness import Neighbours, Process, started


@pytest.fixture(params=["pidfd", "no such system call", "a Python without it"], autouse=True)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """This system as it is, and as one without descriptors of processes."""

    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if request.param == "no such system call":
        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    elif request.param == "a Python without it":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    return request.param


def child(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE)


def ended(neighbours: Neighbours) -> Absence:
    if neighbours.descriptors:
        poll = select.poll()
        for descriptor in neighbours.descriptors:
            poll.register(descriptor, select.POLLIN)
        ((descriptor, _),) = poll.poll(30_000)
        return neighbours.ended(descriptor)[1]
    deadline = time.monotonic() + 30
    while not (found := neighbours.ended_unseen()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ((_, absence),) = found
    return absence


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os; input(); os.kill(os.getpid(), 9)", Absence("killed", "SIGKILL")),
        ("import os; input(); os._exit(3)", Absence("failed", "status 3")),
        ("input()", Absence("left", "status 0")),
    ],
)
def test_the_end_of_a_neighbour_is_told(code: str, expected: Absence) -> None:
    process = child(code)
    neighbours = Neighbours()
    assert neighbours.add(Process(1, process.pid, started(process.pid))) is None
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.close()
    assert ended(neighbours) == expected
    assert not neighbours.processes
    process.wait()


def test_a_later_process_of_the_same_number_is_not_the_neighbour() -> None:
    neighbours = Neighbours()
    here = Process(1, os.getpid(), started(os.getpid()) - 1)
    assert neighbours.add(here) == Absence("silent", "its process is gone")
    assert not neighbours.processes


def test_a_process_that_is_gone_is_told_at_once() -> None:
    process = child("pass")
    process.communicate()
    absence = Neighbours().add(Process(1, process.pid, 1))
    assert absence == Absence("silent", "its process is gone")


def test_signals_reach_all_neighbours() -> None:
    process = child("import time; time.sleep(1000)")
    neighbours = Neighbours()
    neighbours.add(Process(1, process.pid, started(process.pid)))
    neighbours.signal(signal.SIGKILL)
    assert ended(neighbours) == Absence("killed", "SIGKILL")
    process.communicate()
