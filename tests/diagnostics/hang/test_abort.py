"""An abort waits for what there is to tell, and then ends the process as it would have done."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from npu_plugins.diagnostics.hang.abort import ABORT, aborts_soon
from npu_plugins.diagnostics.hang.failure import Failure

PROGRAM = """
import ctypes, faulthandler, os, threading, time
from npu_plugins.diagnostics.hang.abort import hold_aborts

{before}
held = threading.Event()

def tell(failure):
    print(failure.kind, "#", failure.message, "#", failure.stack[0].function, flush=True)
    held.set()
    time.sleep(0.2)

def program():
    held.wait(20)
    print("the program went on meanwhile", flush=True)
    time.sleep(20)

release = hold_aborts(tell)
{after}
thread = threading.Thread(target={target})  # lets go of the interpreter, as C++ does
thread.start()
program()
"""


def run(
    before: str = "", after: str = "", target: str = "ctypes.CDLL(None).abort"
) -> subprocess.CompletedProcess[str]:
    """Run a program of which a thread of C aborts."""
    program = PROGRAM.format(before=before, after=after, target=target)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("before", ["", "faulthandler.enable()"])
def test_the_abort_waits_for_what_is_told(before: str) -> None:
    done = run(before)
    assert done.returncode == -signal.SIGABRT
    told, went_on = done.stdout.splitlines()
    assert told.startswith("Abort # abort() in the thread ")
    assert told.endswith(("# program", "# wait", "# start", "# <module>")), "where the main thread is"
    assert went_on == "the program went on meanwhile"
    assert ("Fatal Python error: Aborted" in done.stderr) == bool(before), "a handler before it has its turn"


def test_nothing_is_held_once_it_is_released() -> None:
    done = run(after="release()")
    assert done.returncode == -signal.SIGABRT
    assert done.stdout == ""


def test_the_cpp_exception_that_nobody_caught_is_told() -> None:
    """libstdc++ has a function that throws a std::runtime_error; what std::terminate prints of it is told."""
    target = "ctypes.CDLL('libstdc++.so.6')._ZSt21__throw_runtime_errorPKc, args=(b'EI0005: unlike calls',)"
    done = run(target=target)
    assert done.returncode == -signal.SIGABRT
    assert ": EI0005: unlike calls #" in done.stdout
    assert "what():  EI0005: unlike calls" in done.stderr


@pytest.mark.parametrize(
    ("kind", "message", "soon"),
    [
        (ABORT, "abort() in the thread hccl_watchdog_t", True),
        ("RuntimeError", "NPU error, error code is 507048: EI0002: notify wait ended early", True),
        ("ValueError", "the batch is empty", False),
    ],
)
def test_errors_of_hccl_end_in_an_abort(kind: str, message: str, soon: bool) -> None:
    assert aborts_soon(Failure(kind, message, ())) == soon
