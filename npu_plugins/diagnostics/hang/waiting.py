"""How long this rank has waited for others, told from the ring and from where the main thread is.

Never a false alarm is the rule: what counts is time that was seen to pass in one and the same wait, so that a
job that was stopped and goes on (SIGSTOP, a debugger, a suspended machine) starts anew; and a long
computation is no wait, since neither the ring nor torch.distributed knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from npu_plugins.diagnostics.hang.recorder import Pending
from npu_plugins.diagnostics.hang.stacks import Spot

RING_SECONDS = 5.0
"""The ring is read this often at most: a look takes milliseconds."""
LONGEST_STEP = 10.0
"""Between two looks; where more time has passed, the process itself had been stopped."""


@dataclass
class WaitClock:
    """Adds up the waits that it sees; one look after another, from one thread."""

    limit: Callable[[timedelta | None, str], float]
    """Seconds that a wait may take, by the timeout of its group (None: the default group's) and its ring."""
    pending: Callable[[], tuple[Pending, ...]]
    spot: Callable[[], Spot | None]
    waits: dict[Pending, float] = field(default_factory=dict)
    """The oldest incomplete call of each group, with the seconds for which it has been seen so."""
    in_spot: float = 0.0
    """Seconds that the main thread has been seen in one wait."""
    _spot: Spot | None = None
    _place: tuple[int, int] | None = None
    _last: float | None = None
    _last_ring: float | None = None

    @property
    def longest(self) -> float:
        """The longest wait in seconds."""
        return max(self.in_spot, *self.waits.values(), 0.0)

    def look(self, now: float) -> bool:
        """Look at the process; returns True once a wait has reached its limit.

        Args:
            now: seconds of a monotonic clock.
        """
        step = _step(self._last, now)
        self._last = now
        self._look_at_main_thread(step)
        if step is None:
            self.waits = {}
            self._last_ring = None
        shortest = min((self.limit(call.timeout, call.ring) for call in self.waits), default=0.0)
        every = min(RING_SECONDS, max(shortest / 10, 0.5)) if shortest else RING_SECONDS / 5
        if self._last_ring is None or now - self._last_ring >= every:
            self._look_at_ring(0.0 if self._last_ring is None else now - self._last_ring)
            self._last_ring = now
        if self._spot is not None and self.in_spot >= self.limit(None, ""):
            return True
        return any(seconds >= self.limit(call.timeout, call.ring) for call, seconds in self.waits.items())

    def _look_at_main_thread(self, step: float | None) -> None:
        spot = self.spot()
        place = None if spot is None else (id(spot.frame), spot.instruction)
        if step is not None and spot is not None and self._spot is not None and self._spot.same_wait(spot):
            self.in_spot += step
        else:
            # A frame is held from its second look on, so that a short wait never keeps its tensors alive.
            self._spot = spot if place == self._place else None
            self.in_spot = 0.0
        self._place = place

    def _look_at_ring(self, seconds: float) -> None:
        """Only the oldest call of each group waits for others; those behind it wait for it."""
        oldest: dict[tuple[str, str, bool], Pending] = {}
        for call in self.pending():
            oldest.setdefault((call.ring, call.group, call.p2p), call)
        self.waits = {
            call: self.waits[call] + seconds if call in self.waits else 0.0 for call in oldest.values()
        }


def _step(last: float | None, now: float) -> float | None:
    """Seconds since the last look; None if there was none, or the process was stopped in between."""
    return now - last if last is not None and now - last <= LONGEST_STEP else None
