"""Calls between HcclGroupStart and HcclGroupEnd run together when the group ends, as HCCL does it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.harness.fixtures import on_ranks

pytestmark = pytest.mark.npu


def hccl() -> dist.Backend:
    """The default group's HCCL backend."""
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("npu"))


@on_ranks(4)
def test_work_that_follows_a_group_of_collectives_sees_their_results() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for elements in (3, 1 << 20):
        first, second = (torch.full((elements,), rank + 1.0, device="npu") for _ in range(2))
        gathered = torch.empty(world * elements, device="npu")
        hccl()._group_start()
        works = [
            dist.all_reduce(first, async_op=True),
            dist.all_reduce(second, op=dist.ReduceOp.MAX, async_op=True),
            dist.all_gather_into_tensor(
                gathered, torch.full((elements,), float(rank), device="npu"), async_op=True
            ),
        ]
        hccl()._group_end()
        for work in works:
            work.wait()
        total = first + second + gathered.view(world, elements).sum(0)
        assert total.unique().tolist() == [1 + 2 + 3 + 4 + 4 + (0 + 1 + 2 + 3)]


@on_ranks(4)
def test_sends_and_receives_of_a_group_cross() -> None:
    """Every rank sends to all others before it receives from any: in order, that would never end."""
    rank, others = dist.get_rank(), [r for r in range(4) if r != dist.get_rank()]
    for peer in others:  # torch_npu ends the group where it first has to make a pair's communicator
        for call in (dist.send, dist.recv) if rank < peer else (dist.recv, dist.send):
            call(torch.ones(1, device="npu"), peer)
    received = {peer: torch.empty(1 << 18, device="npu") for peer in others}
    sent = {peer: torch.full((1 << 18,), 10.0 * rank + peer, device="npu") for peer in others}
    hccl()._group_start()
    for peer in others:
        dist.isend(sent[peer], peer)
    for peer in others:
        dist.irecv(received[peer], peer)
    hccl()._group_end()
    torch.npu.synchronize()
    assert {peer: tensor.unique().tolist() for peer, tensor in received.items()} == {
        peer: [10.0 * peer + rank] for peer in others
    }


@on_ranks(2)
def test_nothing_is_issued_before_the_outermost_group_ends() -> None:
    tensor = torch.ones(4, device="npu")
    hccl()._group_start()
    hccl()._group_start()
    dist.all_reduce(tensor, async_op=True)
    hccl()._group_end()
    torch.npu.synchronize()
    assert tensor.tolist() == [1.0] * 4
    hccl()._group_end()
    torch.npu.synchronize()
    assert tensor.tolist() == [2.0] * 4
