"""Work that may never come back, done in a thread so that the rank can still say that it has not."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

LOOK = 0.05
"""Seconds between two looks at whether there is still hope."""


class Done(NamedTuple):
    """What became of a piece of work; neither `value` nor `error` where it has not come back in time."""

    value: Any = None
    error: str = ""
    """``RuntimeError: the first line of it``."""
    stuck: bool = False


class Worker:
    """One thread that does one thing after another; a device is chosen in it once and for all.

    A daemon thread, since a call into a communication library cannot be broken off.
    """

    def __init__(self) -> None:
        self.steps = 0
        """How many steps it has begun."""
        self.step = ""
        """The step that it is at, in words; empty between steps."""
        self.stuck = False
        self._todo: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="preflight", daemon=True)
        self._thread.start()

    def at(self, step: str) -> None:
        """Say which step the work is at; whoever works in the thread calls this."""
        self.steps += bool(step)
        self.step = step

    def run(
        self, work: Callable[[], Any], limit: float, hopeless: Callable[[], bool] = lambda: False
    ) -> Done:
        """Do `work`. Once it has not come back in time, nothing else may be asked for.

        Args:
            work: to do.
            limit: seconds that it may take.
            hopeless: looked at now and then; true if there is no use in waiting any longer.
        """
        deadline = time.monotonic() + limit
        self._todo.put(work)
        while True:
            left = deadline - time.monotonic()
            with contextlib.suppress(queue.Empty):
                return self._done.get(timeout=min(LOOK, max(left, 0.001)))
            if left <= 0 or hopeless():
                self.stuck = True
                return Done(stuck=True)

    def close(self) -> None:
        """End the thread, unless it is stuck."""
        self._todo.put(None)
        if not self.stuck:
            self._thread.join()

    def _work(self) -> None:
        while True:
            work = self._todo.get()
            if work is None:
                return
            try:
                self._done.put(Done(value=work()))
            except Exception as error:  # whatever it is, the other ranks are told
                told = str(error).strip().splitlines() or [""]
                self._done.put(Done(error=f"{type(error).__name__}: {told[0]}"))
