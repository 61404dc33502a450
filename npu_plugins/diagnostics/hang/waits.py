"""Who waits for whom: the open calls of all ranks as a graph, its roots and its cycles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from npu_plugins.diagnostics.hang.dump import Call
from npu_plugins.diagnostics.hang.history import History, plain_op


@dataclass(frozen=True)
class Waiting:
    """One open call of one rank, and the ranks that did not come to it."""

    rank: int
    call: Call
    waits_for: tuple[int, ...]
    """Empty if all came."""
    behind: tuple[int, ...]
    """Ranks that came, but whose device stands in an earlier open call; only for a rank's oldest call."""
    seconds: float


@dataclass(frozen=True)
class Graph:
    """The open calls of each rank, oldest first."""

    waiting: Mapping[int, tuple[Waiting, ...]]

    def edges(self) -> dict[int, set[int]]:
        """Return for each rank the ranks that it waits for, over all its open calls."""
        found: dict[int, set[int]] = {}
        for rank, calls in self.waiting.items():
            others = {other for waiting in calls for other in waiting.waits_for + waiting.behind}
            found.setdefault(rank, set()).update(others)
            for other in others:
                found.setdefault(other, set())
        return found

    def first_edges(self) -> dict[int, set[int]]:
        """Return for each rank those that it waits for in its oldest open call, where its device stands."""
        return {rank: {*calls[0].waits_for, *calls[0].behind} for rank, calls in self.waiting.items()}

    def of(self, rank: int) -> Waiting | None:
        """Return the call that `rank` waits in: the oldest to which a rank did not come, else the oldest."""
        own = self.waiting.get(rank, ())
        return next((waiting for waiting in own if waiting.waits_for), own[0] if own else None)

    def waiters(self, ranks: Collection[int]) -> list[Waiting]:
        """Return the calls to which one of `ranks` did not come, by rank and age."""
        asked = set(ranks)
        return [
            waiting
            for calls in self.waiting.values()
            for waiting in calls
            if not asked.isdisjoint(waiting.waits_for)
        ]


def make_graph(history: History, gone: Collection[int], patience: float) -> Graph:
    """Find out for each open call that is older than `patience` seconds who did not come.

    Args:
        history: what the ranks called.
        gone: ranks that cannot come any more: ended, or ended by an exception.
        patience: a call younger than that is work under way, not a wait.
    """
    missing: dict[tuple[str, int, tuple[int, ...]], tuple[int, ...]] = {}
    found: dict[int, list[Waiting]] = {}
    oldest = {rank: next(history.open_calls(rank), None) for rank in history.dumps}
    for rank in sorted(history.dumps):
        for call in history.open_calls(rank):
            seconds = history.waited(rank, call)
            if seconds < patience:
                continue
            behind: tuple[int, ...] = ()
            if call.p2p:
                absent = _missing_peer(history, rank, call, gone)
                peer = peer_of(history, rank, call)
                if rank not in found and not absent and peer is not None:
                    first = oldest[peer]
                    behind = (peer,) if first is not None and not _is_between(first, rank, call) else ()
            else:
                members = history.members(rank, call.group)
                key = (call.group, call.sequence, members)
                if key not in missing:
                    missing[key] = tuple(_missing(history, call, members, gone))
                absent = tuple(other for other in missing[key] if other != rank)
                if rank not in found and not absent:
                    behind = tuple(other for other in members if _stands_before(oldest.get(other), call))
            found.setdefault(rank, []).append(Waiting(rank, call, absent, behind, seconds))
    return Graph({rank: tuple(calls) for rank, calls in found.items()})


def roots(edges: Mapping[int, Collection[int]], busy: Collection[int]) -> tuple[list[int], list[list[int]]]:
    """Return the ranks at which the chains of waits end, and the circles in which no chain ends.

    Args:
        edges: for each rank those that it waits for.
        busy: ranks whose program is seen to do something else than wait. One of them in a circle is what the
            circle waits for: its open calls were begun without waiting for them.
    """
    ends, circles = [], []
    for component in _components(edges):
        inner = set(component)
        if any(not inner.issuperset(edges.get(rank, ())) for rank in component):
            continue
        if len(component) == 1:
            ends += component
        elif inner.isdisjoint(busy) or inner <= set(busy):
            circles.append(sorted(component))
        else:
            ends += sorted(inner & set(busy))
    return sorted(ends), circles


def chain_to(
    edges: Mapping[int, Collection[int]], start: int, ends: Collection[int]
) -> list[tuple[int, int]]:
    """Return the shortest chain of waits from `start` to one of `ends`, as pairs of who waits for whom.

    `start` may be one of `ends`: then the chain is a circle. Empty if there is none.
    """
    came_from: dict[int, int] = {}
    queue = [start]
    for rank in queue:
        for other in sorted(edges.get(rank, ())):
            if other in ends:
                chain = [(rank, other)]
                while chain[0][0] != start:
                    chain.insert(0, (came_from[chain[0][0]], chain[0][0]))
                return chain
            if other not in came_from and other != start:
                came_from[other] = rank
                queue.append(other)
    return []


def circle_in(edges: Mapping[int, Collection[int]], component: list[int]) -> list[int]:
    """Return ranks of which each waits for the next, and the last for the first: the shortest circle."""
    circles = [[rank for rank, _ in chain_to(edges, start, (start,))] for start in component]
    return min(filter(None, circles), key=len, default=[])


def _missing(history: History, call: Call, members: tuple[int, ...], gone: Collection[int]) -> Iterator[int]:
    for other in members:
        if other not in history.dumps:
            yield other
            continue
        came_to = history.last(other, call.group)
        if came_to < call.sequence or (other in gone and came_to == call.sequence):
            yield other


def _stands_before(oldest: Call | None, call: Call) -> bool:
    """Tell whether a rank that came to `call` is still in another one before it."""
    return oldest is not None and (oldest.group, oldest.sequence, oldest.p2p) != (
        call.group,
        call.sequence,
        False,
    )


def _is_between(oldest: Call, rank: int, call: Call) -> bool:
    """Tell whether the oldest open call of `call`'s other side is one with `rank`."""
    return oldest.p2p and oldest.group == call.group and oldest.peer in (rank, None)


def _missing_peer(history: History, rank: int, call: Call, gone: Collection[int]) -> tuple[int, ...]:
    peer = peer_of(history, rank, call)
    if peer is None:
        return ()
    if peer not in history.dumps or peer in gone:
        return (peer,)
    return () if _answers(history, rank, peer, call) else (peer,)


def peer_of(history: History, rank: int, call: Call) -> int | None:
    """Return the other side of a point-to-point call; None where nothing tells."""
    others = [member for member in history.members(rank, call.group) if member != rank]
    return others[0] if call.peer is None and len(others) == 1 else call.peer


def _answers(history: History, rank: int, peer: int, call: Call) -> bool:
    """Tell whether `peer` is in the other half of the call: a receive for a send."""
    other_half = {"send": "recv", "recv": "send"}.get(plain_op(call.op))
    return any(
        theirs.p2p
        and theirs.group == call.group
        and theirs.peer in (rank, None)
        and (other_half is None or plain_op(theirs.op) in (other_half, ""))
        for theirs in history.open_calls(peer)
    )


def _components(edges: Mapping[int, Collection[int]]) -> list[list[int]]:
    """Return the strongly connected components (Tarjan 1972, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for first in sorted(edges):
        if first in index:
            continue
        work = [(first, iter(sorted(edges[first])))]
        index[first] = low[first] = len(index)
        stack.append(first)
        on_stack.add(first)
        while work:
            rank, others = work[-1]
            for other in others:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(edges.get(other, ())))))
                    break
                if other in on_stack:
                    low[rank] = min(low[rank], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[rank])
                if low[rank] == index[rank]:
                    cut = stack.index(rank)
                    found.append(stack[cut:])
                    on_stack -= set(stack[cut:])
                    del stack[cut:]
    return found
