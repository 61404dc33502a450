"""The collectives of nccl-tests in the calls of torch.distributed: what goes in, and what comes out.

Sizes and bandwidths are nccl-tests' own (github.com/NVIDIA/nccl-tests: doc/PERFORMANCE.md, and the
``GetCollByteCount`` and ``GetBw`` of each program).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

from npu_plugins.diagnostics.errors import DiagnosticsError

_ALIGNED = 16  # bytes; nccl-tests lets each rank's part begin at such a place


@dataclass
class Call:
    """What one call works on; `send` and `receive` are flat tensors of one dtype."""

    send: torch.Tensor
    receive: torch.Tensor
    group: dist.ProcessGroup | None
    members: Sequence[int]
    """Global ranks of the group, in its order."""
    rank: int
    """Of this process in the group."""
    root: int = 0
    """In the group."""
    reduction: str = "sum"

    @property
    def ranks(self) -> int:
        """Size of the group."""
        return len(self.members)

    def brought(self) -> torch.Tensor:
        """Return `receive` with what `send` holds: torch reduces and broadcasts in place, so it is copied."""
        if self.send is not self.receive:
            self.receive.copy_(self.send)
        return self.receive


class Part(NamedTuple):
    """Where a stretch of what a rank receives comes from."""

    source: int | None
    """Rank of the group that sent it; None: all ranks' reduction."""
    start: int
    """Its first place in the source's data."""


@dataclass(frozen=True)
class Collective:
    """One of the collectives; `n` is the number of ranks."""

    name: str
    run: Callable[[Call], None]
    expected: Callable[[int, int, int, int], list[Part]]
    """(rank, n, root, count) -> the equal parts of what that rank receives; none where nothing is told."""
    bus_factor: Callable[[int], float]
    """Bus bandwidth over algorithm bandwidth."""
    sends_parts: bool = False
    """Each rank sends n parts of `count`, instead of one."""
    receives_parts: bool = False
    reduces: bool = False
    rooted: bool = False
    in_place: bool = True
    """Whether the same memory may hold what is sent and what is received."""
    least_ranks: int = 1

    def count(self, size: int, dtype: torch.dtype, ranks: int) -> int:
        """Return the elements that a call is given for a size in bytes; 0 where the size is too small."""
        elements = size // dtype.itemsize
        if not (self.sends_parts or self.receives_parts):
            return elements
        unit = max(1, _ALIGNED // dtype.itemsize)
        return elements // ranks // unit * unit

    def sent(self, count: int, ranks: int) -> int:
        """Return the elements that each rank sends."""
        return count * ranks if self.sends_parts else count

    def received(self, count: int, ranks: int) -> int:
        """Return the elements that each rank receives."""
        return count * ranks if self.receives_parts else count

    def size(self, count: int, dtype: torch.dtype, ranks: int) -> int:
        """Return the bytes that nccl-tests calls the size: the larger of what is sent and received."""
        return max(self.sent(count, ranks), self.received(count, ranks)) * dtype.itemsize

    def bandwidths(self, size: int, seconds: float, ranks: int) -> tuple[float, float]:
        """Return algorithm and bus bandwidth in GB/s (10^9 bytes) of `size` bytes in so many seconds."""
        moved = size * (ranks - 1) / ranks if self.name == "hypercube" else size
        algorithm = moved / 1e9 / seconds
        return algorithm, algorithm * self.bus_factor(ranks)

    def buffers(
        self, count: int, dtype: torch.dtype, ranks: int, rank: int, device: torch.device, in_place: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return flat memory to send from and to receive in; in place, one is (a part of) the other."""
        sent, received = self.sent(count, ranks), self.received(count, ranks)
        whole = torch.zeros(max(sent, received), dtype=dtype, device=device)
        if not in_place:
            return torch.zeros(sent, dtype=dtype, device=device), whole[:received]
        own = whole[rank * count : (rank + 1) * count]
        return (own if sent < received else whole), (own if received < sent else whole)


def collective_named(name: str) -> Collective:
    """Return the collective of that name, torch's or nccl-tests'.

    Raises:
        DiagnosticsError: there is none.
    """
    found = {each.name: each for each in COLLECTIVES}
    wanted = {"alltoall": "all_to_all"}.get(name, name)
    if wanted not in found:
        reduction = "; the reduction is -o or --redop" if wanted in REDUCE_OPS else ""
        raise DiagnosticsError(
            f"There is no collective {name!r}; --op takes {', '.join(found)} or all{reduction}"
        )
    return found[wanted]


REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}


def _all_reduce(call: Call) -> None:
    dist.all_reduce(call.brought(), REDUCE_OPS[call.reduction], group=call.group)


def _reduce(call: Call) -> None:
    root = call.members[call.root]
    dist.reduce(call.brought(), root, REDUCE_OPS[call.reduction], group=call.group)


def _broadcast(call: Call) -> None:
    tensor = call.brought() if call.rank == call.root else call.receive
    dist.broadcast(tensor, call.members[call.root], group=call.group)


def _all_gather(call: Call) -> None:
    # torch 2.13 renamed all_gather_into_tensor; this package serves older ones too
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(call.receive, call.send, group=call.group)


def _reduce_scatter(call: Call) -> None:
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    scatter(call.receive, call.send, REDUCE_OPS[call.reduction], group=call.group)


def _all_to_all(call: Call) -> None:
    dist.all_to_all_single(call.receive, call.send, group=call.group)


def _gather(call: Call) -> None:
    parts = list(call.receive.chunk(call.ranks)) if call.rank == call.root else None
    dist.gather(call.send, parts, call.members[call.root], group=call.group)


def _scatter(call: Call) -> None:
    parts = list(call.send.chunk(call.ranks)) if call.rank == call.root else None
    dist.scatter(call.receive, parts, call.members[call.root], group=call.group)


def _send_and_receive(call: Call) -> None:
    """Each rank sends to the next one and receives from the one before."""
    _exchange(call, (call.rank + 1) % call.ranks, call.send, (call.rank - 1) % call.ranks, call.receive)


def _hypercube(call: Call) -> None:
    """All-gather by doubling: in each dimension of the cube, pairs exchange all that they have."""
    count = call.receive.numel() // call.ranks
    own = call.receive[call.rank * count : (call.rank + 1) * count]
    if own.data_ptr() != call.send.data_ptr():
        own.copy_(call.send)
    held = 1
    while held < call.ranks:
        mine = call.rank // held * held
        theirs = mine ^ held
        peer = call.rank ^ held
        send, receive = (call.receive[at * count : (at + held) * count] for at in (mine, theirs))
        _exchange(call, peer, send, peer, receive)
        held *= 2


def _exchange(call: Call, to: int, send: torch.Tensor, source: int, receive: torch.Tensor) -> None:
    operations = [
        dist.P2POp(dist.isend, send, call.members[to], call.group),
        dist.P2POp(dist.irecv, receive, call.members[source], call.group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


COLLECTIVES = (
    Collective(
        "all_reduce",
        _all_reduce,
        lambda rank, n, root, count: [Part(None, 0)],
        lambda n: 2 * (n - 1) / n,
        reduces=True,
    ),
    Collective(
        "all_gather",
        _all_gather,
        lambda rank, n, root, count: [Part(source, 0) for source in range(n)],
        lambda n: (n - 1) / n,
        receives_parts=True,
    ),
    Collective(
        "reduce_scatter",
        _reduce_scatter,
        lambda rank, n, root, count: [Part(None, rank * count)],
        lambda n: (n - 1) / n,
        sends_parts=True,
        reduces=True,
    ),
    Collective(
        "broadcast",
        _broadcast,
        lambda rank, n, root, count: [Part(root, 0)],
        lambda n: 1.0,
        rooted=True,
    ),
    Collective(
        "reduce",
        _reduce,
        lambda rank, n, root, count: [Part(None, 0)] if rank == root else [],
        lambda n: 1.0,
        reduces=True,
        rooted=True,
    ),
    Collective(
        "all_to_all",
        _all_to_all,
        lambda rank, n, root, count: [Part(source, rank * count) for source in range(n)],
        lambda n: (n - 1) / n,
        sends_parts=True,
        receives_parts=True,
        in_place=False,
    ),
    Collective(
        "gather",
        _gather,
        lambda rank, n, root, count: [Part(source, 0) for source in range(n)] if rank == root else [],
        lambda n: (n - 1) / n,
        receives_parts=True,
        rooted=True,
    ),
    Collective(
        "scatter",
        _scatter,
        lambda rank, n, root, count: [Part(root, rank * count)],
        lambda n: (n - 1) / n,
        sends_parts=True,
        rooted=True,
    ),
    Collective(
        "sendrecv",
        _send_and_receive,
        lambda rank, n, root, count: [Part((rank - 1) % n, 0)],
        lambda n: 1.0,
        in_place=False,
        least_ranks=2,
    ),
    Collective(
        "hypercube",
        _hypercube,
        lambda rank, n, root, count: [Part(source, 0) for source in range(n)],
        lambda n: 1.0,
        receives_parts=True,
        least_ranks=2,
    ),
)
