"""SIGTERM kept off while a rank may have to tell of another: launchers end all as soon as one has ended."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading


class Termination:
    """Holds SIGTERM back and gives it back, from whichever thread.

    torchrun looks at its ranks ten times a second, and asks the others to end as soon as one has ended badly.
    faulthandler's handler is in C, so that also another thread than the main one may set it; it writes into a
    pipe, by which one knows later whether the signal came. A handler of the program's own stays.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._lock = threading.Lock()
        self._reasons: set[str] = set()
        self._pipe: tuple[int, int] | None = None

    def hold(self, reason: str) -> None:
        """Keep SIGTERM off until every `reason` for it is released."""
        with self._lock:
            self._reasons.add(reason)
            if self._pipe is not None or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
                return
            self._pipe = os.pipe()
            for descriptor in self._pipe:
                os.set_blocking(descriptor, False)
            faulthandler.register(signal.SIGTERM, self._pipe[1], all_threads=False, chain=False)

    def release(self, reason: str) -> None:
        """Give it back, if there is no other reason; if it has come meanwhile, it ends this process now."""
        with self._lock:
            self._reasons.discard(reason)
            if self._reasons or self._pipe is None:
                return
            (out, into), self._pipe = self._pipe, None
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else the program has set one since
                faulthandler.unregister(signal.SIGTERM)
            try:
                came = bool(os.read(out, 1))
            except BlockingIOError:
                came = False
            os.close(out)
            os.close(into)
        if came:
            os.kill(os.getpid(), signal.SIGTERM)
