"""What ends the watch's sleep: a process that ended, a signal from a person, a word of the main thread."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
from contextlib import suppress

SIGNAL = signal.SIGUSR2
_READ_SIZE = 65536


class Wakeup:
    """Two pipes that the watch waits on, together with the descriptors of other processes."""

    def __init__(self) -> None:
        """Make the pipes."""
        self._word_out, self._word_in = _pipe()
        self._signal_out, self._signal_in = _pipe()
        self._asked = False

    def listen(self) -> bool:
        """Let SIGUSR2 ask for a report; call it from the main thread. Returns False where it is taken.

        The handler is faulthandler's, in C: it writes into a pipe, also while the main thread is inside a
        library and Python's own handlers would not run.
        """
        if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
            return False
        faulthandler.register(SIGNAL, self._signal_in, all_threads=False, chain=False)
        return True

    def poke(self) -> None:
        """End the watch's sleep."""
        with suppress(BlockingIOError):  # full: it is woken already
            os.write(self._word_in, b".")

    def wait(self, seconds: float, descriptors: list[int]) -> list[int]:
        """Sleep; returns those of `descriptors` that became readable."""
        poll = select.poll()
        for descriptor in (self._word_out, self._signal_out, *descriptors):
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(seconds * 1000)]
        if self._word_out in ready:
            _drain(self._word_out)
        if self._signal_out in ready:
            self._asked = True
            _drain(self._signal_out)
        return [descriptor for descriptor in ready if descriptor in descriptors]

    def asked(self) -> bool:
        """Return whether a person asked for a report since the last `forget`."""
        return self._asked

    def forget(self) -> None:
        """Take the question for answered, with all that the handler has written of it meanwhile."""
        self._asked = False
        _drain(self._signal_out)


def _pipe() -> tuple[int, int]:
    out, into = os.pipe()
    os.set_blocking(out, False)
    os.set_blocking(into, False)
    return out, into


def _drain(descriptor: int) -> None:
    with suppress(BlockingIOError):
        while os.read(descriptor, _READ_SIZE):
            continue
