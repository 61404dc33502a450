"""How far the clocks of the hosts are apart, by messages over the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch.distributed as dist

from npu_plugins.diagnostics.preflight.place import Place
from npu_plugins.diagnostics.preflight.report import Finding

PINGS = 8
"""Messages there and back for each host; the quickest counts."""


class Skew(NamedTuple):
    """A clock against rank 0's."""

    seconds: float
    """Positive if it is ahead."""
    error: float
    """Half of what the message took: so far off the figure can be at most."""


def skew_of(sent: float, received: float, answered: float, back: float) -> Skew:
    """Return a clock's skew by one message there and back (RFC 5905 §8).

    Args:
        sent, back: by the clock in question, in seconds.
        received, answered: by rank 0's clock.
    """
    return Skew(
        ((sent - received) + (back - answered)) / 2, max(0.0, (back - sent) - (answered - received)) / 2
    )


def one_of_each_machine(places: Mapping[int, Place]) -> list[int]:
    """Return the first rank of each machine but rank 0's, in order: ranks of a machine have one clock."""
    first: dict[str, int] = {}
    for rank in sorted(places):
        first.setdefault(places[rank].machine, rank)
    return [rank for machine, rank in first.items() if machine != places[0].machine]


def measure(
    store: dist.Store, rank: int, asked: Sequence[int], clock: Callable[[], float] = time.time
) -> Skew | None:
    """Measure on the ranks `asked` how far their clocks are from rank 0's, which answers.

    Args:
        store: with a timeout, over a connection of its own.
        rank: of this process; those neither asked nor 0 do nothing.
        asked: in the order in which rank 0 answers.
        clock: of this rank, in seconds since 1970.

    Returns:
        The skew on a rank that was asked; None on the others.
    """
    if rank == 0:
        for other in asked:
            store.set(f"clock {other} now", b"")
            for ping in range(PINGS):
                store.get(f"clock {other} ping {ping}")
                received = clock()
                store.set(f"clock {other} pong {ping}", f"{received!r} {clock()!r}")
        return None
    if rank not in asked:
        return None
    store.get(f"clock {rank} now")
    found = []
    for ping in range(PINGS):
        sent = clock()
        store.set(f"clock {rank} ping {ping}", b"")
        received, answered = map(float, store.get(f"clock {rank} pong {ping}").decode().split())
        found.append(skew_of(sent, received, answered, clock()))
    return min(found, key=lambda skew: skew.error)


def judge(skews: Mapping[int, Skew], most: float, hosts: Mapping[int, str]) -> list[Finding]:
    """Return a warning for each host whose clock is surely more than `most` seconds from rank 0's."""
    found = []
    for rank, skew in skews.items():
        if abs(skew.seconds) - skew.error > most:
            way = "ahead of" if skew.seconds > 0 else "behind"
            what = (
                f"the clock of host {hosts.get(rank, '?')} (rank {rank}) is {abs(skew.seconds):.3f} s {way} "
                f"that of host {hosts.get(0, '?')} (rank 0), ± {skew.error:.3f} s"
            )
            mend = "let the hosts take their time from one server (chrony or ntpd)"
            found.append(Finding("clock", "warning", (rank,), what, mend))
    return found
