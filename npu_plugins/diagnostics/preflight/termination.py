"""SIGTERM from a launcher that has lost a rank: the others tell which one before they end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class HeldTermination:
    """Holds SIGTERM back while a rank is known to have ended.

    Launchers end all ranks within a tenth of a second after one has gone, and kill those that are still there
    seconds later. A rank that is in a preflight then ends by itself, once its report is told. Any other
    SIGTERM does what it did before.
    """

    def __init__(self, lost: Callable[[], bool]) -> None:
        """Take what tells whether a rank has ended."""
        self._lost = lost
        self._previous: Any = None
        self._holds = False

    def begin(self) -> None:
        """Hold it from now on; in other threads than the main one, Python lets nobody do so."""
        if threading.current_thread() is threading.main_thread() and not self._holds:
            self._previous = signal.signal(signal.SIGTERM, self._handle)
            self._holds = True

    def end(self) -> None:
        """Give SIGTERM back."""
        if self._holds:
            self._holds = False
            # None: of a handler that is not Python's, which cannot be put back.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._lost():
            self.end()
            os.kill(os.getpid(), number)
