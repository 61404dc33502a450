"""Reductions of every dtype with every op, over HCCL and gloo, against numpy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from npu_plugins.comm import CommError, collectives
from npu_plugins.comm.collectives import reductions
from tests.accelerator.conftest import KeptWorld
from tests.comm.collectives.reference import ALL, COMPLEX, OPS, meaningless, reduced, same, values

DEVICES = ("npu", "cpu")
COUNT = 9  # three for each rank
LARGE = 6001  # of float64: more than is gathered whole, and no multiple of three


def mine(dtype: torch.dtype, count: int, device: str) -> torch.Tensor:
    return values(dtype, dist.get_rank(), count).to(device)


def part(whole: torch.Tensor) -> torch.Tensor:
    return whole.view(3, -1)[dist.get_rank()]


def all_ways(dtype: torch.dtype, op: Any, device: str, later: bool) -> dict[str, tuple[torch.Tensor, bool]]:
    """By name of the collective: what this rank got, and whether that is its part only."""

    def settled(handle: Any) -> None:
        assert (handle is not None) == later
        if later:
            handle.wait()

    found = {}
    tensor = mine(dtype, COUNT, device)
    settled(collectives.all_reduce(tensor, op, async_op=later))
    found["all_reduce"] = (tensor, False)
    tensor = mine(dtype, COUNT, device)
    settled(collectives.reduce(tensor, 1, op, async_op=later))
    if dist.get_rank() == 1:
        found["reduce"] = (tensor, False)
    output = torch.empty(COUNT // 3, dtype=dtype, device=device)
    settled(collectives.reduce_scatter_tensor(output, mine(dtype, COUNT, device), op, async_op=later))
    found["reduce_scatter_tensor"] = (output, True)
    output = torch.empty(COUNT // 3, dtype=dtype, device=device)
    pieces = list(mine(dtype, COUNT, device).view(3, -1).unbind())
    settled(collectives.reduce_scatter(output, pieces, op, async_op=later))
    found["reduce_scatter"] = (output, True)
    return found


def wrong_results(dtypes: tuple[torch.dtype, ...], device: str, later: bool) -> list[str]:
    """On a rank: the collectives whose results are not the reference's, in words."""
    wrong = []
    for dtype in dtypes:
        for name in OPS:
            if meaningless(dtype, name):
                continue
            wanted = reduced(dtype, name, 3, COUNT)
            # gloo has its own order of the ranks, and some processors round once for a·b - c·d.
            exact = device == "npu" and name != "PRODUCT"
            for collective, (found, its_part) in all_ways(
                dtype, getattr(ReduceOp, name), device, later
            ).items():
                right = part(wanted) if its_part else wanted
                if not same(found, right, exact):
                    wrong.append(
                        f"{collective} {name} {dtype} on {device}: {found.tolist()}, not {right.tolist()}"
                    )
    return wrong


@pytest.mark.parametrize("device", DEVICES)
def test_every_dtype_and_op_and_collective(three_ranks: KeptWorld, device: str) -> None:
    """At once for the odd ones of `ALL`, with a handle for the even ones; the ways differ in the end only."""
    for dtypes, later in ((ALL[::2], False), (ALL[1::2], True)):
        assert three_ranks.run(wrong_results, dtypes, device, later) == [[]] * 3


def test_what_means_nothing_is_refused(three_ranks: KeptWorld) -> None:
    def refused() -> None:
        for dtype in ALL:
            for name in filter(lambda name: meaningless(dtype, name), OPS):
                with pytest.raises(CommError, match=rf"ReduceOp.{name} of {dtype} means nothing: "):
                    collectives.all_reduce(mine(dtype, 3, "npu"), getattr(ReduceOp, name))
        with pytest.raises(CommError, match=r"contiguous .* shape \[3, 2\] has strides \(1, 3\)"):
            collectives.all_reduce(torch.ones(2, 3, dtype=torch.float64, device="npu").t())
        with pytest.raises(CommError, match="needs an input of 3 × the 2 torch.float64 elements"):
            collectives.reduce_scatter_tensor(mine(torch.float64, 2, "npu"), mine(torch.float64, 5, "npu"))
        with pytest.raises(CommError, match="needs 3 tensors of the output's torch.float64, and was given 2"):
            collectives.reduce_scatter(mine(torch.float64, 2, "npu"), [mine(torch.float64, 2, "npu")] * 2)

    three_ranks.run(refused)


def large_and_in_pieces(dtype: torch.dtype, device: str) -> list[str]:
    """On a rank: two steps in which each rank reduces a share, whole and in many pieces."""
    wanted, wrong = reduced(dtype, "SUM", 3, LARGE), []
    before = reductions.CHUNK_BYTES
    for chunk, later in ((before, False), (before, True), (50_000, False)):
        reductions.CHUNK_BYTES = chunk
        tensor = mine(dtype, LARGE, device).view(1, LARGE)
        handle = collectives.all_reduce(tensor, ReduceOp.SUM, async_op=later)
        if later:
            handle.wait()
        kept = mine(dtype, LARGE, device)
        collectives.reduce(kept, 2, ReduceOp.SUM)
        output = torch.empty(LARGE // 3, dtype=dtype, device=device)
        collectives.reduce_scatter_tensor(output, mine(dtype, LARGE // 3 * 3, device), ReduceOp.SUM)
        scattered = part(reduced(dtype, "SUM", 3, LARGE // 3 * 3))
        got = {"all_reduce": (tensor[0], wanted), "reduce_scatter_tensor": (output, scattered)}
        got["reduce"] = (kept, wanted if dist.get_rank() == 2 else values(dtype, dist.get_rank(), LARGE))
        wrong += [f"{name} {dtype} {chunk}" for name, pair in got.items() if not same(*pair)]
    reductions.CHUNK_BYTES = before
    return wrong


def test_large_tensors_in_two_steps(three_ranks: KeptWorld) -> None:
    """Each rank adds up its share in the order of the ranks, so that all have the bits of one process."""
    for dtype in (torch.float64, torch.complex128):
        assert three_ranks.run(large_and_in_pieces, dtype, "npu") == [[]] * 3


def test_uneven_parts_and_none(three_ranks: KeptWorld) -> None:
    def uneven() -> list[str]:
        wrong = []
        here = dist.get_rank()
        for dtype in (torch.float64, torch.int16):
            pieces = [mine(dtype, count, "npu") for count in (1, 4, 2)]
            output = torch.empty(len(pieces[here]), dtype=dtype, device="npu")
            collectives.reduce_scatter(output, pieces)
            if not same(output, reduced(dtype, "SUM", 3, len(output))):
                wrong.append(str(dtype))
        for later in (False, True):
            empty = torch.empty(0, dtype=torch.float64, device="npu")
            for handle in (
                collectives.all_reduce(empty, async_op=later),
                collectives.reduce_scatter_tensor(empty, empty.clone(), async_op=later),
            ):
                assert not later or (handle.is_completed() and handle.wait())
        return wrong

    assert three_ranks.run(uneven) == [[]] * 3


def test_a_group_of_some_ranks(three_ranks: KeptWorld) -> None:
    def sums() -> list[float]:
        group = dist.new_group([0, 2])
        tensor = torch.full((2,), 0.1 + dist.get_rank(), dtype=torch.float64, device="npu")
        if dist.get_rank() != 1:
            collectives.all_reduce(tensor, ReduceOp.AVG, group)
            collectives.reduce(tensor, 2, ReduceOp.SUM, group)
        return tensor.tolist()

    average = (0.1 + 2.1) / 2
    assert three_ranks.run(sums) == [[average] * 2, [1.1] * 2, [2 * average] * 2]


def test_complex_numbers_have_products(three_ranks: KeptWorld) -> None:
    """torch refuses them itself on any backend."""
    assert all(not meaningless(dtype, "PRODUCT") for dtype in COMPLEX)

    def product() -> complex:
        tensor = torch.tensor([1j], device="npu")
        collectives.all_reduce(tensor, ReduceOp.PRODUCT)
        return complex(tensor.item())

    assert three_ranks.run(product) == [-1j] * 3
