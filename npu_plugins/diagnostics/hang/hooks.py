"""Where the watch is told of the end of its process."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from npu_plugins.diagnostics.hang.abort import hold_aborts
from npu_plugins.diagnostics.hang.failure import Failure

if TYPE_CHECKING:
    from npu_plugins.diagnostics.hang.watch import HangWatch


def install(watch: HangWatch) -> None:
    """Let an uncaught exception, an abort and the interpreter's exit tell `watch`; SIGUSR2 asks it."""
    stay_outermost(watch)
    watch.release_aborts = hold_aborts(lambda failure: _aborts(watch, failure))
    atexit.register(_leave, watch)
    watch.wakeup.listen()


def stay_outermost(watch: HangWatch) -> None:
    """Put the watch's hook around whatever stands there, so that the exception is shown before the report.

    torch's init_process_group puts one of its own around it, which collects what the inner ones print.
    """
    if not isinstance(sys.excepthook, ExceptionHook):
        sys.excepthook = ExceptionHook(watch, sys.excepthook)


@dataclass(frozen=True)
class ExceptionHook:
    """A sys.excepthook that shows an exception as before, and then tells the watch."""

    watch: HangWatch
    previous: Callable[[type[BaseException], BaseException, TracebackType | None], object]

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Show `error`; returns when the job's report is written, if this rank is of a job.

        The watch knows of it before it is shown, which takes a while: another rank may want a dump meanwhile.
        """
        outermost, watch = sys.excepthook, self.watch
        tells = os.getpid() == watch.pid and watch.is_alive() and not issubclass(kind, KeyboardInterrupt)
        failure = None
        if tells and not (isinstance(outermost, ExceptionHook) and outermost is not self):
            failure = Failure.of(kind, error, trace)
            watch.raised(failure)
        self.previous(kind, error, trace)
        if failure is not None:
            sys.stderr.flush()
            watch.failed(failure)


def _aborts(watch: HangWatch, failure: Failure) -> None:
    if os.getpid() == watch.pid and watch.is_alive():
        watch.failed(failure)


def _leave(watch: HangWatch) -> None:
    if os.getpid() == watch.pid and watch.is_alive():
        watch.leave()
    watch.release_aborts()
