"""Collectives that copy: every bit of every dtype arrives, over HCCL and gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from npu_plugins.comm import collectives
from npu_plugins.comm.collectives.work import Pending
from tests.accelerator.conftest import KeptWorld
from tests.comm.collectives.reference import ALL

ODD = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
COUNT = 6


def bits(dtype: torch.dtype, rank: int, device: str = "cpu") -> torch.Tensor:
    """Any bits at all, nan and its payload too; of bool the two that there are."""
    generator = torch.Generator().manual_seed(rank)
    high = 2 if dtype == torch.bool else 256
    raw = torch.randint(0, high, (COUNT * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).to(device)


def as_raw(tensor: torch.Tensor) -> list[int]:
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.contiguous().cpu().view(-1).view(torch.uint8).tolist()


def arrived(dtype: torch.dtype, device: str, later: bool) -> dict[str, tuple[list[Any], list[Any]]]:
    """On a rank: by name of the collective, what came and what was to come."""
    here, ranks = dist.get_rank(), range(3)
    all_of_them = [bits(dtype, rank) for rank in ranks]
    own = bits(dtype, here, device)
    got: dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    def call(name: str, *arguments: Any, **options: Any) -> None:
        handle = getattr(collectives, name)(*arguments, async_op=later, **options)
        if later:
            handle.wait()

    def empty(count: int = COUNT) -> torch.Tensor:
        return torch.empty(count, dtype=dtype, device=device)

    tensor = bits(dtype, here, device)
    call("broadcast", tensor, 1)
    got["broadcast"] = ([tensor], [all_of_them[1]])
    whole = empty(3 * COUNT)
    call("all_gather_into_tensor", whole, own)
    got["all_gather_into_tensor"] = (list(whole.view(3, -1)), all_of_them)
    places = [empty() for _ in ranks]
    call("all_gather", places, own)
    got["all_gather"] = (places, all_of_them)
    output = empty()
    call("all_to_all_single", output, own)
    to_here = [each.view(3, -1)[here] for each in all_of_them]
    got["all_to_all_single"] = (list(output.view(3, -1)), to_here)
    if device == "npu":  # gloo has no all_to_all of lists
        places = [empty(2) for _ in ranks]
        call("all_to_all", places, list(own.view(3, -1).unbind()))
        got["all_to_all"] = (places, to_here)
    output = empty(2)
    call("scatter", output, list(own.view(3, -1).unbind()) if here == 2 else None, src=2)
    got["scatter"] = ([output], [all_of_them[2].view(3, -1)[here]])
    places = [empty() for _ in ranks]
    call("gather", own, places if here == 1 else None, dst=1)
    if here == 1:
        got["gather"] = (places, all_of_them)
    output = empty()
    collectives.send(own, 1) if here == 0 else collectives.recv(output, 0) if here == 1 else None
    if here == 1:
        got["recv"] = ([output], [all_of_them[0]])
    return {name: ([as_raw(x) for x in pair[0]], [as_raw(x) for x in pair[1]]) for name, pair in got.items()}


@pytest.mark.parametrize("device", ["npu", "cpu"])
def test_every_bit_arrives(three_ranks: KeptWorld, device: str) -> None:
    def wrong() -> list[str]:
        found = []
        for index, dtype in enumerate((*ALL, *ODD)):
            for name, (came, wanted) in arrived(dtype, device, later=index % 2 == 0).items():
                if came != wanted:
                    found.append(f"{name} of {dtype} on {device}: {came}, not {wanted}")
        return found

    assert three_ranks.run(wrong) == [[]] * 3


def test_parameters_are_copied_too(three_ranks: KeptWorld) -> None:
    """They want a gradient, which a copy in place is not asked about."""

    def broadcast() -> list[float]:
        weight = torch.nn.Parameter(
            torch.full((2,), float(dist.get_rank()), dtype=torch.float64, device="npu")
        )
        collectives.broadcast(weight, 2)
        collectives.all_reduce(weight)
        return weight.tolist()

    assert three_ranks.run(broadcast) == [[6.0, 6.0]] * 3


def test_messages_in_a_ring(three_ranks: KeptWorld) -> None:
    def ring() -> bool:
        here = dist.get_rank()
        before, after = (here - 1) % 3, (here + 1) % 3
        right = True
        for dtype in (torch.complex128, torch.float8_e5m2, torch.bool):
            sent, came = bits(dtype, here, "npu"), torch.empty(COUNT, dtype=dtype, device="npu")
            operations = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, came, before)]
            for handle in collectives.batch_isend_irecv(operations):
                handle.wait()
            right &= as_raw(came) == as_raw(bits(dtype, before))
            handles = [collectives.isend(sent, after)] if here == 0 else []
            if here == 1:
                handles = [collectives.irecv(came, before)]
            for handle in handles:
                handle.wait()
            right &= as_raw(came) == as_raw(bits(dtype, before))
        return right

    assert three_ranks.run(ring) == [True] * 3


def outside(group: Any) -> None:
    """On a rank outside of a group: torch's warning, whatever the dtype, and nothing else."""
    for dtype in (torch.float32, torch.bool):
        tensor = torch.zeros(2, dtype=dtype, device="npu")
        for name, arguments in (
            ("broadcast", (tensor, 1)),
            ("all_gather", ([tensor, tensor], tensor)),
            ("gather", (tensor, None, 1)),
            ("all_reduce_coalesced", ([tensor, tensor],)),
        ):
            with pytest.warns(UserWarning, match="does not belong to the given group"):
                assert getattr(collectives, name)(*arguments, group=group) is None


@pytest.mark.parametrize("device", ["npu", "cpu"])
def test_tensors_of_two_dtypes_are_refused(three_ranks: KeptWorld, device: str) -> None:
    """They are of one size, so that as carriers of bits they would pass."""

    def refused() -> None:
        sent = torch.ones(3, dtype=torch.float64, device=device)
        whole, same_size = (torch.zeros(count, dtype=torch.int64, device=device) for count in (9, 3))
        for call in (
            lambda: collectives.all_gather_into_tensor(whole, sent),
            lambda: collectives.all_gather(list(whole.view(3, 3)), sent),
            lambda: collectives.all_to_all_single(same_size, sent),
        ):
            with pytest.raises((ValueError, RuntimeError), match="type"):
                call()
        assert not whole.any() and not same_size.any()

    three_ranks.run(refused)


def test_gather_of_some_ranks(three_ranks: KeptWorld) -> None:
    """The group's ranks are not the world's; the others get torch's own refusals."""

    def gathered() -> list[float]:
        group = dist.new_group([1, 2])
        here = dist.get_rank()
        if here == 0:
            outside(group)
            return []
        places = [torch.zeros(1, device="npu") for _ in range(2)] if here == 2 else None
        collectives.gather(torch.full((1,), float(here), device="npu"), places, dst=2, group=group)
        if here == 2:
            with pytest.raises(ValueError, match="gather_list"):
                collectives.gather(torch.zeros(1, device="npu"), None, dst=2, group=group)
            with pytest.raises(ValueError, match="different dtypes"):
                collectives.gather(torch.zeros(1, device="npu").int(), places, dst=2, group=group)
        else:
            with pytest.raises(ValueError, match="NOT be specified on non-destination ranks"):
                sent = torch.zeros(1, device="npu")
                collectives.gather(sent, [sent, sent], dst=2, group=group)
        return [float(place) for place in places or []]

    assert three_ranks.run(gathered) == [[], [], [1.0, 2.0]]


class Handle:
    """A backend's handle that notes what is asked of it."""

    def __init__(self) -> None:
        self.waits: list[Any] = []

    def wait(self, *timeout: Any) -> None:
        self.waits.append(timeout)

    def is_completed(self) -> bool:
        return bool(self.waits)


def test_what_is_left_to_do_is_done_once_and_after_the_backend() -> None:
    handle, order = Handle(), []
    pending = Pending([handle, None], lambda: order.append(list(handle.waits)))
    assert not pending.is_completed() and not order
    assert pending.wait() and pending.wait() and pending.is_completed()
    assert order == [[()]], "once, after the wait"
