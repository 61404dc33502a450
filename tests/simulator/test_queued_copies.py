"""Copies inside an NPU join a busy stream's queue: the host runs ahead, and the order is kept."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from tests.harness.fixtures import on_ranks

LATE = 0.6  # seconds rank 1 comes late
SOON = 0.3  # a host call that does not wait for rank 1 is back by then


def warm_up() -> None:
    """Make the communicator and every code path once, so that nothing slow is left for the measurement."""
    outputs = [torch.zeros(4, device="npu") for _ in range(2)]
    dist.all_gather(outputs, torch.ones(4, device="npu"))
    torch.npu.synchronize()
    dist.barrier()


@on_ranks(2)
def test_an_asynchronous_all_gather_into_a_list_returns_at_once() -> None:
    warm_up()
    rank = dist.get_rank()
    outputs = [torch.zeros(4, device="npu") for _ in range(2)]
    mine = torch.full((4,), float(rank), device="npu")
    torch.npu.synchronize()
    dist.barrier()
    if rank == 1:
        time.sleep(LATE)
    start = time.monotonic()
    work = dist.all_gather(outputs, mine, async_op=True)
    issued = time.monotonic() - start
    work.wait()
    assert [output.tolist() for output in outputs] == [[0.0] * 4, [1.0] * 4]
    assert rank == 1 or issued < SOON


@on_ranks(2)
def test_a_copy_behind_a_collective_sees_its_result() -> None:
    warm_up()
    total, copies = torch.ones(1000, device="npu"), torch.zeros(3, 2, 1000, device="npu", dtype=torch.float16)
    if dist.get_rank() == 1:
        time.sleep(LATE)
    dist.all_reduce(total)
    start = time.monotonic()
    copies[1].copy_(total)  # broadcast, converted, into a view
    queued = time.monotonic() - start
    total.copy_(copies[1, 0] + 1)
    assert dist.get_rank() == 1 or queued < SOON
    assert copies.sum(-1).tolist() == [[0, 0], [2000, 2000], [0, 0]]
    assert total.tolist() == [3.0] * 1000
