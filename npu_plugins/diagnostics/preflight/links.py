"""How fast two ranks exchange data: measured on pairs of a mesh's groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from npu_plugins.comm import ProcessMesh
from npu_plugins.comm.topology import AXES, Topology
from npu_plugins.diagnostics.preflight.pairs import rounds

REPEATS = 3
"""Exchanges of a message; the quickest counts."""
LATENCY_REPEATS = 10
LATENCY_BYTES = 8


class Link(NamedTuple):
    """Two ranks that exchange data within a group."""

    axis: str
    low: int
    """Global rank, the lower one of the two."""
    high: int


class Timing(NamedTuple):
    """The quickest exchange of a link, in which each side sends as much as it receives."""

    seconds: float
    """Of a message of the size asked for."""
    latency: float
    """Seconds of a message of `LATENCY_BYTES`."""

    def best(self, other: Timing) -> Timing:
        """Return the quicker of two, size by size."""
        return Timing(min(self.seconds, other.seconds), min(self.latency, other.latency))


def all_links(topology: Topology) -> list[list[Link]]:
    """Return rounds of links of all axes; within a round no rank comes twice. The same on every rank."""
    found = []
    for axis in AXES:
        if topology.size(axis) < 2:
            continue
        groups = topology.groups(axis)
        for pairs in rounds(topology.size(axis)):
            found.append([Link(axis, *sorted((group[i], group[j]))) for group in groups for i, j in pairs])
    return found


def measure_at_once(
    mesh: ProcessMesh, links: Sequence[Sequence[Link]], size: int, at: Callable[[str], None]
) -> dict[Link, Timing]:
    """Measure this rank's link in each round, while the other pairs of the round exchange as well.

    Args:
        mesh: whose groups have communicated before.
        links: of `all_links`.
        size: of a message, in bytes.
        at: called before each link, with its name in words.
    """
    found = {}
    for together in links:
        for link in together:
            if mesh.global_rank in (link.low, link.high):
                at(name_of(link))
                found[link] = measure(mesh, link, size)
    at("")
    return found


def measure_in_turn(
    mesh: ProcessMesh,
    links: Sequence[Link],
    size: int,
    store: dist.Store,
    topic: str,
    at: Callable[[str], None],
) -> dict[Link, Timing]:
    """Measure this rank's links while all others are quiet.

    Args:
        mesh: whose groups have communicated before.
        links: in the order in which they are measured, the same on every rank.
        size: of a message, in bytes.
        store: by which a pair knows that it is its turn.
        topic: of the store's keys.
        at: called before each link, with its name in words.
    """
    found: dict[Link, Timing] = {}
    for place, link in enumerate(links):
        if mesh.global_rank not in (link.low, link.high):
            continue
        at(name_of(link))
        if place:
            store.get(f"{topic} {place - 1} measured")
        again = measure(mesh, link, size)
        found[link] = again.best(found.get(link, again))
        if mesh.global_rank == link.low:
            store.set(f"{topic} {place} measured", b"")
    at("")
    return found


def measure(mesh: ProcessMesh, link: Link, size: int) -> Timing:
    """Exchange data over a link and return the times; both ranks call this."""
    other = link.high if mesh.global_rank == link.low else link.low
    group: Any = mesh.group(link.axis)
    latency = min(exchange_times(group, other, LATENCY_BYTES, LATENCY_REPEATS + 1, mesh.device)[1:])
    return Timing(min(exchange_times(group, other, size, REPEATS, mesh.device)), latency)


def exchange_times(
    group: dist.ProcessGroup, other: int, size: int, repeats: int, device: torch.device
) -> list[float]:
    """Return how long each of some exchanges with global rank `other` took, in seconds.

    Sending and receiving go as one batch: HCCL then uses the group's communicator, where a send by itself
    would make one for each pair, with buffers of its own.
    """
    outgoing = torch.ones(size, dtype=torch.uint8, device=device)
    incoming = torch.empty_like(outgoing)
    found = []
    for _ in range(repeats):
        synchronize(device)
        began = time.perf_counter()
        batch = [
            dist.P2POp(dist.isend, outgoing, other, group),
            dist.P2POp(dist.irecv, incoming, other, group),
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        synchronize(device)
        found.append(time.perf_counter() - began)
    return found


def synchronize(device: torch.device) -> None:
    """Wait until a device has done what it was given."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


def name_of(link: Link) -> str:
    """Return a link in words."""
    return f"the exchange of ranks {link.low} and {link.high} ({link.axis})"
