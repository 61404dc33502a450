"""Handles of collectives that need something done after the backend's own part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch


class Pending:
    """Like torch's Work: the result may be read after `wait()`, which does what is left to do.

    Where the backend works in the order of a device's stream (HCCL), `wait` does not hold up the host.
    """

    def __init__(self, works: Sequence[Any], finish: Callable[[], None]) -> None:
        """Take the backend's handles (None: done already) and what is left to do after them."""
        self._works = [work for work in works if work is not None]
        self._finish: Callable[[], None] | None = finish

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the backend, then do the rest, once.

        Args:
            timeout: longest wait for each of the backend's handles; None: that of the group.
        """
        for work in self._works:
            work.wait() if timeout is None else work.wait(timeout)
        finish, self._finish = self._finish, None
        if finish is not None:
            with torch.no_grad():
                finish()
        return True

    def is_completed(self) -> bool:
        """Return whether `wait` would not wait for the backend."""
        return all(work.is_completed() for work in self._works)


def settle(works: Sequence[Any], finish: Callable[[], None], async_op: bool) -> Pending | None:
    """Finish a collective now, or return the handle that does."""
    pending = Pending(works, finish)
    if async_op:
        return pending
    pending.wait()
    return None
