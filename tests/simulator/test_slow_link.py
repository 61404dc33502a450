"""NPU_SIM_SLOW_LINK: what crosses a slow link takes the time of its bytes and arrives whole."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from tests.harness import World

pytestmark = pytest.mark.npu

MEGABYTES = 4.0  # a second, over the link between NPU 1 and NPU 2
MANY, FEW = 1 << 19, 1 << 10  # float32: 2 MiB are read where they lie, 4 KiB travel beside the descriptors


def timed(call: Callable[[torch.Tensor], object], elements: int) -> float:
    """Seconds of one call, once all ranks are there; its tensor is filled with this rank's number."""
    tensor = torch.full((elements,), float(dist.get_rank()), device="npu")
    dist.barrier()
    torch.npu.synchronize()
    begin = time.monotonic()
    call(tensor)
    torch.npu.synchronize()
    return time.monotonic() - begin


def pass_on(tensor: torch.Tensor, sender: int, receiver: int) -> None:
    """One rank's tensor to another; the receiver looks at what came."""
    if dist.get_rank() == sender:
        dist.send(tensor, receiver)
    elif dist.get_rank() == receiver:
        dist.recv(tensor, sender)
        assert torch.equal(tensor.cpu(), torch.full(tensor.shape, float(sender)))


def swap(tensor: torch.Tensor) -> None:
    """Ranks 1 and 2 exchange their tensors in one batch."""
    rank = dist.get_rank()
    if rank in (1, 2):
        taken = torch.empty_like(tensor)
        calls = [dist.P2POp(dist.isend, tensor, 3 - rank), dist.P2POp(dist.irecv, taken, 3 - rank)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        assert torch.equal(taken.cpu(), torch.full(tensor.shape, 3.0 - rank))


def sum_up(tensor: torch.Tensor) -> None:
    """An all-reduce over all ranks."""
    dist.all_reduce(tensor)
    assert torch.equal(tensor.cpu(), torch.full(tensor.shape, 3.0))


def gather(tensor: torch.Tensor) -> None:
    """An all-gather over all ranks."""
    out = torch.empty(3 * tensor.numel(), device="npu")
    dist.all_gather_into_tensor(out, tensor)
    assert torch.equal(out.cpu().view(3, -1)[:, 0], torch.arange(3.0))


def seconds_of_each() -> dict[str, float]:
    """The time of each kind of call on this rank; the first of each communicator is not counted."""
    for sender, receiver in ((0, 1), (1, 2)):
        timed(lambda t: pass_on(t, sender, receiver), 1)  # noqa: B023 - called at once
    return {
        "send 0 to 1": min(timed(lambda t: pass_on(t, 0, 1), MANY) for _ in range(3)),
        "send 1 to 2": timed(lambda t: pass_on(t, 1, 2), MANY),
        "swap 1 and 2": timed(swap, MANY),
        "all_reduce": timed(sum_up, MANY),
        "all_gather": timed(gather, MANY),
        "all_gather of few": timed(gather, FEW),
    }


@pytest.mark.ranks(3, env={"NPU_SIM_SLOW_LINK": f"2-1:{MEGABYTES}"})
def test_what_crosses_a_slow_link_takes_its_time(ranks: World) -> None:
    """Lower bounds only: how much longer a busy machine takes decides nothing."""
    seconds = ranks.run(seconds_of_each)
    whole = 4 * MANY / (MEGABYTES * 1e6)
    for rank in (1, 2):
        assert seconds[rank]["send 1 to 2"] >= whole
        assert seconds[rank]["swap 1 and 2"] >= whole, "both ways at once, each with the whole speed"
        assert seconds[rank]["all_gather of few"] >= 4 * FEW / (MEGABYTES * 1e6)
    for rank in range(3):
        assert seconds[rank]["all_gather"] >= whole
        assert seconds[rank]["all_reduce"] >= 2 * whole / 3, "two thirds cross: a third is reduced, and sent"
    assert min(seconds[rank]["send 0 to 1"] for rank in (0, 1)) < whole, "other links keep their speed"


@pytest.mark.ranks(2, backend="gloo", env={"NPU_SIM_SLOW_LINK": "0:1"})
def test_a_value_that_cannot_be_read_is_an_error_of_hccl(ranks: World) -> None:
    def join() -> None:
        group = dist.new_group(backend="hccl")
        dist.all_reduce(torch.ones(1, device=f"npu:{dist.get_rank()}"), group=group)
        torch.npu.synchronize()

    ranks.grace = 0.0  # the other rank waits for rank 0 to open the communicator
    first = ranks.outcomes(join)[0]
    assert first.kind == "raised"
    assert "NPU_SIM_SLOW_LINK='0:1' is no list of <NPU>-<NPU>:<MB/s>" in first.text + first.log
