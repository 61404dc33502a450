"""Every collective of torch.distributed run once from a Case, with its reference.

Each runner returns pairs (what the collective left, what must be there) for one member of the group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.simulator.collective_cases import (
    Case,
    contribution,
    garbage,
    group_of,
    place,
    reduce_op,
    reduced,
    same,
)

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Seat:
    """One rank's place in the case's group."""

    case: Case
    member: int
    device: torch.device

    @property
    def group(self) -> dist.ProcessGroup | None:
        return group_of(self.case.group)

    @property
    def root(self) -> int:
        """The root's global rank."""
        return self.case.group[self.case.root]

    @property
    def is_root(self) -> bool:
        return self.member == self.case.root

    def give(
        self, part: int = 0, shape: tuple[int, ...] | None = None, in_list: bool = False
    ) -> torch.Tensor:
        """This member's contribution on the device."""
        return place(self.case, contribution(self.case, self.member, part, shape), self.device, in_list)

    def take(self, shape: tuple[int, ...] | None = None, in_list: bool = False) -> torch.Tensor:
        """A tensor to receive into."""
        return garbage(self.case, self.case.shape if shape is None else shape, self.device, in_list)

    def all(self, part: int = 0) -> list[torch.Tensor]:
        """All members' contributions on the CPU."""
        return [contribution(self.case, member, part) for member in range(self.case.world)]

    def finish(self, work: dist.Work | None) -> None:
        """Wait for an asynchronous collective."""
        if self.case.async_op:
            if work is None:
                raise AssertionError("async_op=True returned no work")
            work.wait()

    def sized(self, member: int) -> tuple[int, ...]:
        """Shape of what `member` gives in an uneven collective."""
        return (self.case.sizes[member], *self.case.shape)

    def split(self, source: int, target: int) -> int:
        """Rows that `source` sends `target` in an uneven all-to-all."""
        return self.case.sizes[(source + 2 * target) % self.case.world]


def all_reduce(seat: Seat) -> Pairs:
    tensor = seat.give()
    seat.finish(dist.all_reduce(tensor, reduce_op(seat.case), seat.group, seat.case.async_op))
    return [(tensor, reduced(seat.case, seat.all()))]


def reduce(seat: Seat) -> Pairs:
    tensor = seat.give()
    seat.finish(dist.reduce(tensor, seat.root, reduce_op(seat.case), seat.group, seat.case.async_op))
    return [(tensor, reduced(seat.case, seat.all()))] if seat.is_root else []


def broadcast(seat: Seat) -> Pairs:
    tensor = seat.give()
    seat.finish(dist.broadcast(tensor, seat.root, seat.group, seat.case.async_op))
    return [(tensor, contribution(seat.case, seat.case.root))]


def all_gather(seat: Seat) -> Pairs:
    outputs = [seat.take(in_list=True) for _ in range(seat.case.world)]
    seat.finish(dist.all_gather(outputs, seat.give(), seat.group, seat.case.async_op))
    return list(zip(outputs, seat.all(), strict=True))


def all_gather_uneven(seat: Seat) -> Pairs:
    members = range(seat.case.world)
    outputs = [seat.take(seat.sized(member)) for member in members]
    mine = seat.give(shape=seat.sized(seat.member))
    seat.finish(dist.all_gather(outputs, mine, seat.group, seat.case.async_op))
    expected = [contribution(seat.case, member, shape=seat.sized(member)) for member in members]
    return list(zip(outputs, expected, strict=True))


def all_gather_into_tensor(seat: Seat) -> Pairs:
    output = seat.take((seat.case.world, *seat.case.shape))
    seat.finish(dist.all_gather_into_tensor(output, seat.give(), seat.group, seat.case.async_op))
    return [(output, torch.stack(seat.all()))]


def all_gather_into_tensor_coalesced(seat: Seat) -> Pairs:
    outputs = [seat.take((seat.case.world, *seat.case.shape)) for _ in range(3)]
    with _coalescing_manager(seat.group, device=seat.device, async_ops=seat.case.async_op) as manager:
        for part, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, seat.give(part), seat.group)
    if seat.case.async_op:
        manager.wait()
    return [(output, torch.stack(seat.all(part))) for part, output in enumerate(outputs)]


def reduce_scatter(seat: Seat) -> Pairs:
    output = seat.take()
    inputs = [seat.give(part) for part in range(seat.case.world)]  # torch_npu refuses transposed ones
    seat.finish(dist.reduce_scatter(output, inputs, reduce_op(seat.case), seat.group, seat.case.async_op))
    return [(output, reduced(seat.case, seat.all(seat.member)))]


def reduce_scatter_uneven(seat: Seat) -> Pairs:
    output = seat.take(seat.sized(seat.member))
    inputs = [seat.give(part, shape=seat.sized(part)) for part in range(seat.case.world)]
    seat.finish(dist.reduce_scatter(output, inputs, reduce_op(seat.case), seat.group, seat.case.async_op))
    shape = seat.sized(seat.member)
    given = [contribution(seat.case, member, seat.member, shape) for member in range(seat.case.world)]
    return [(output, reduced(seat.case, given))]


def reduce_scatter_tensor(seat: Seat) -> Pairs:
    output = seat.take()
    given = torch.stack([contribution(seat.case, seat.member, part) for part in range(seat.case.world)])
    mine = place(seat.case, given, seat.device)
    seat.finish(
        dist.reduce_scatter_tensor(output, mine, reduce_op(seat.case), seat.group, seat.case.async_op)
    )
    return [(output, reduced(seat.case, seat.all(seat.member)))]


def gather(seat: Seat) -> Pairs:
    outputs = [seat.take() for _ in range(seat.case.world)] if seat.is_root else None
    seat.finish(dist.gather(seat.give(), outputs, seat.root, seat.group, seat.case.async_op))
    return list(zip(outputs, seat.all(), strict=True)) if outputs else []


def scatter(seat: Seat) -> Pairs:
    output = seat.take()
    inputs = [seat.give(part) for part in range(seat.case.world)] if seat.is_root else None
    seat.finish(dist.scatter(output, inputs, seat.root, seat.group, seat.case.async_op))
    return [(output, contribution(seat.case, seat.case.root, seat.member))]


def all_to_all(seat: Seat) -> Pairs:
    members = range(seat.case.world)
    rest = seat.case.shape
    inputs = [seat.give(target, (seat.split(seat.member, target), *rest)) for target in members]
    outputs = [seat.take((seat.split(source, seat.member), *rest)) for source in members]
    seat.finish(dist.all_to_all(outputs, inputs, seat.group, seat.case.async_op))
    return list(zip(outputs, _received(seat), strict=True))


def all_to_all_single(seat: Seat) -> Pairs:
    members = range(seat.case.world)
    given = torch.stack([contribution(seat.case, seat.member, part) for part in members])
    output = seat.take(tuple(given.shape))
    mine = place(seat.case, given, seat.device)
    seat.finish(dist.all_to_all_single(output, mine, None, None, seat.group, seat.case.async_op))
    return [(output, torch.stack(seat.all(seat.member)))]


def all_to_all_single_uneven(seat: Seat) -> Pairs:
    members = range(seat.case.world)
    rest = seat.case.shape
    rows_out = [seat.split(seat.member, target) for target in members]
    rows_in = [seat.split(source, seat.member) for source in members]
    given = torch.cat([contribution(seat.case, seat.member, t, (rows_out[t], *rest)) for t in members])
    output = seat.take((sum(rows_in), *rest))
    mine = place(seat.case, given, seat.device)
    seat.finish(dist.all_to_all_single(output, mine, rows_in, rows_out, seat.group, seat.case.async_op))
    return [(output, torch.cat(_received(seat)))]


def _received(seat: Seat) -> list[torch.Tensor]:
    rest = seat.case.shape
    return [
        contribution(seat.case, source, seat.member, (seat.split(source, seat.member), *rest))
        for source in range(seat.case.world)
    ]


def send_recv(seat: Seat) -> Pairs:
    """Down the line of members, each hop by blocking send and recv."""
    tensor = seat.give() if seat.member == 0 else seat.take()
    if seat.member > 0:
        dist.recv(tensor, seat.case.group[seat.member - 1], seat.group)
    if seat.member < seat.case.world - 1:
        dist.send(tensor, seat.case.group[seat.member + 1], seat.group)
    return [(tensor, contribution(seat.case, 0))]


def batched_ring(seat: Seat) -> Pairs:
    """Both ways round the ring in one batch."""
    left, right = (seat.member - 1) % seat.case.world, (seat.member + 1) % seat.case.world
    from_left, from_right = seat.take(), seat.take()
    peers = seat.case.group
    # In this order a pair of two members also matches: what goes right is what comes from the left.
    ops = [
        dist.P2POp(dist.isend, seat.give(1), peers[right], seat.group),
        dist.P2POp(dist.irecv, from_left, peers[left], seat.group),
        dist.P2POp(dist.isend, seat.give(0), peers[left], seat.group),
        dist.P2POp(dist.irecv, from_right, peers[right], seat.group),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return [(from_left, contribution(seat.case, left, 1)), (from_right, contribution(seat.case, right, 0))]


REDUCING: dict[str, Callable[[Seat], Pairs]] = {
    runner.__name__: runner
    for runner in (all_reduce, reduce, reduce_scatter, reduce_scatter_uneven, reduce_scatter_tensor)
}
MOVING: dict[str, Callable[[Seat], Pairs]] = {
    runner.__name__: runner
    for runner in (
        broadcast,
        all_gather,
        all_gather_uneven,
        all_gather_into_tensor,
        all_gather_into_tensor_coalesced,
        gather,
        scatter,
        all_to_all,
        all_to_all_single,
        all_to_all_single_uneven,
        send_recv,
        batched_ring,
    )
}
UNEVEN = ("all_gather_uneven", "reduce_scatter_uneven", "all_to_all", "all_to_all_single_uneven")
PAIRWISE = ("send_recv", "batched_ring")  # need a peer


def check(case: Case, device: str) -> None:
    """Run `case` on this rank and compare; ranks outside the group only help to make it."""
    group = group_of(case.group)
    if dist.get_rank() not in case.group:
        return
    seat = Seat(
        case,
        dist.get_rank(group),
        torch.device(device, dist.get_rank()) if device == "npu" else torch.device(device),
    )
    for number, (actual, expected) in enumerate((REDUCING | MOVING)[case.op](seat)):
        if not same(actual, expected):
            raise AssertionError(
                f"{case}: member {seat.member}, tensor {number}: {actual} instead of {expected}"
            )
