"""How a neighbour ended is known the moment it does, whether or not its parent has reaped it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from npu_plugins.diagnostics.hang.findings import Absence
from npu_plugins.diagnostics.hang.liveness import Neighbours, Process, started

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no pidfd")


def child(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE)


def ended(neighbours: Neighbours) -> Absence:
    poll = select.poll()
    for descriptor in neighbours.descriptors:
        poll.register(descriptor, select.POLLIN)
    ((descriptor, _),) = poll.poll(30_000)
    return neighbours.ended(descriptor)[1]


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
    assert not neighbours.descriptors
    process.wait()


def test_a_later_process_of_the_same_number_is_not_the_neighbour() -> None:
    neighbours = Neighbours()
    here = Process(1, os.getpid(), started(os.getpid()) - 1)
    assert neighbours.add(here) == Absence("silent", "its process is gone")
    assert not neighbours.descriptors


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
