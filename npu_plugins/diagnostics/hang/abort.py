"""Holds an abort of this process back until its hang watch has told the job why.

torch_npu's watchdog thread ends the process with abort() within half a second of an error of HCCL, mostly
before the ranks have told each other what they know. Each rank that is asked to dump is one that still lives.
"""

from __future__ import annotations

import ctypes
import re
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from npu_plugins.diagnostics.hang.dump import Frame
from npu_plugins.diagnostics.hang.failure import Failure
from npu_plugins.diagnostics.hang.in_flight import exception_in_flight

LAST_RESORT_SECONDS = 40
"""The kernel ends the process then, should Python not get to run: the abort may be one of the heap's."""
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)


ABORT = "Abort"
"""Kind of the failure of a rank that aborts."""
_OF_HCCL = re.compile(r"\bEI\d{4}\b|\b50704\d\b|\bhccl", re.IGNORECASE)


def aborts_soon(failure: Failure) -> bool:
    """Return whether a failure is an abort, or of a kind after which torch_npu aborts the process."""
    return failure.kind == ABORT or tells_of_hccl(failure.message)


def tells_of_hccl(text: str) -> bool:
    """Return whether an error is HCCL's, which all ranks of a group raise soon."""
    return bool(_OF_HCCL.search(text))


def hold_aborts(tell: Callable[[Failure], None]) -> Callable[[], None]:
    """Let abort() call `tell` first, in the thread that aborts, and then whatever handler there was.

    Args:
        tell: returns when the process may end.

    Returns:
        What puts the former handler back; to be called before the interpreter ends.
    """
    libc: Any = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]

    before: list[int | None] = []

    def on_abort(number: int) -> None:
        libc.signal(int(signal.SIGALRM), None)  # SIG_DFL, which ends the process
        libc.alarm(LAST_RESORT_SECONDS)
        with suppress(Exception):
            tell(describe_abort())
        libc.signal(number, *before)
        if before[0] is not None:  # such as faulthandler's, which shows all stacks
            getattr(libc, "raise")(number)

    handler = _Handler(on_abort)
    before.append(libc.signal(int(signal.SIGABRT), ctypes.cast(handler, ctypes.c_void_p)))

    def release() -> None:
        held = libc.signal(int(signal.SIGABRT), *before)
        if held != ctypes.cast(handler, ctypes.c_void_p).value:  # the program has set another since
            libc.signal(int(signal.SIGABRT), held)

    return release


def describe_abort() -> Failure:
    """Return what there is to tell of an abort of the calling thread.

    That is its name, the C++ exception that nobody caught, and where the program is.
    """
    name = ""
    with suppress(OSError):
        name = Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text(encoding="utf-8").strip()
    frame: Any = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = []
    while frame is not None:
        stack.append(Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    why = exception_in_flight()
    said = f": {why}" if why else "; the log above says why"
    return Failure(ABORT, f"abort() in the thread {name or 'of no name'}{said}", tuple(stack))
