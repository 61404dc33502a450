"""A rank that waits leaves the CPU to the others, which do the NPUs' work on it."""

from __future__ import annotations

import ctypes
import threading

import pytest

from tests.harness.fixtures import on_ranks

PR_GET_TIMERSLACK = 30  # prctl(2)


def slack() -> int:
    """How much later than asked for the waits of the calling thread may end, in ns."""
    return ctypes.CDLL(None).prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)


@pytest.mark.npu
@on_ranks(1)
def test_threads_that_ask_every_microsecond_are_woken_every_millisecond() -> None:
    """torch_npu has such a thread, which a thread that uses the NPU starts."""
    found = [slack()]
    thread = threading.Thread(target=lambda: found.append(slack()))
    thread.start()
    thread.join()
    assert found == [1_000_000] * 2
