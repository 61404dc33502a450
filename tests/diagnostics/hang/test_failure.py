"""What a rank knows of its own end: before its exception is shown, and whoever HCCL told its error."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any

import pytest

from npu_plugins.diagnostics.hang.failure import Failure
from npu_plugins.diagnostics.hang.hooks import ExceptionHook
from npu_plugins.diagnostics.hang.watch import HangWatch

UNLIKE = "EI0005: the ranks of communicator 'dp' do not agree: rank 0: ...; rank 1: ..."


def of_program(message: str) -> Failure:
    return Failure("RuntimeError", message, ())


def test_what_hccl_told_another_thread_is_added_once() -> None:
    failure = of_program("NPU error, error code is 507049")
    known = failure.with_codes_of(f"[Rank 0] HCCL watchdog thread terminated:\n{UNLIKE}", f"query: {UNLIKE}")
    assert known.message == f"NPU error, error code is 507049\n{UNLIKE}"
    assert known.with_codes_of(UNLIKE, "no code") == known


def test_a_dump_knows_the_program_s_exception_rather_than_an_abort() -> None:
    watch = HangWatch({})
    watch.answered.set()  # so that nobody is waited for
    watch.ring.error = UNLIKE
    watch.failed(Failure("Abort", "abort() in the thread hccl_watchdog_t: ", ()))
    told = watch._known_failure()
    assert told is not None and told.kind == "Abort" and UNLIKE in told.message
    watch.raised(of_program("error code is 507049"))
    told = watch._known_failure()
    assert told is not None and told.kind == "RuntimeError" and UNLIKE in told.message


def test_the_watch_knows_of_an_exception_before_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank may ask for a dump while a traceback is written, which takes as long as it takes."""
    steps: list[str] = []

    class Watch:
        pid = os.getpid()

        def is_alive(self) -> bool:
            return True

        def raised(self, failure: Failure) -> None:
            steps.append(f"raised {failure.message}")

        def failed(self, failure: Failure) -> None:
            steps.append(f"failed {failure.message}")

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        steps.append("shown")

    watch: Any = Watch()
    hook = ExceptionHook(watch, show)
    monkeypatch.setattr(sys, "excepthook", hook)
    hook(ValueError, ValueError("of the program"), None)
    assert steps == ["raised of the program", "shown", "failed of the program"]
    steps.clear()
    hook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert steps == ["shown"]


def test_an_exception_of_hccl_without_its_code_is_waited_for_in_an_abort() -> None:
    watch = HangWatch({})
    watch.answered.set()
    assert not watch._tells_why()
    watch.raised(of_program("NPU error, error code is 507049"))
    assert not watch._tells_why(), "HCCL told it to another thread"
    watch.failed(Failure("Abort", f"abort() in the thread hccl_watchdog_t: {UNLIKE}", ()))
    assert watch._tells_why()
    watch.raised(of_program("the batch is empty"))
    assert watch._tells_why()
