"""Ranks of a group that hold something else than the others are named, with tensor, element and bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from npu_plugins.diagnostics.consistency import Copies, Difference, checksum, compare
from npu_plugins.diagnostics.consistency.checksums import PIECE
from npu_plugins.diagnostics.consistency.compare import Named
from tests.accelerator.conftest import KeptWorld
from tests.harness.npu import why_no_npu
from tests.harness.pool import RankPool

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64)
SHAPES = ((), (5,), (3, 4), (2, 3, 300))


@pytest.fixture(scope="module", params=["gloo", "hccl"])
def four(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[tuple[KeptWorld, str]]:
    """Four ranks on CPUs, then on NPUs."""
    if why_no_npu() and request.param == "hccl":
        pytest.skip(str(why_no_npu()))
    with rank_pool.world(4, request.param) as world:
        yield KeptWorld(world), "cpu" if request.param == "gloo" else "npu"


def tensors(device: str) -> list[Named]:
    """What all ranks have alike."""
    generator = torch.Generator().manual_seed(1)
    drawn = [
        (f"{str(dtype)[6:]} {list(shape)}", (torch.randn(shape, generator=generator) * 9).to(dtype))
        for dtype in DTYPES
        for shape in SHAPES
    ]
    return [Named("parameter", name, tensor.to(device)) for name, tensor in drawn]


def copies(device: str, ranks: tuple[int, ...] = (0, 1, 2, 3), group: Any = None) -> Copies:
    """Everything, on this rank."""
    return Copies("dp", group, ranks, torch.device(device, 0 if device == "cpu" else None), tensors(device))


def flip(tensor: torch.Tensor, element: int, bit: int) -> None:
    """Flip a bit of an element, in place."""
    host = tensor.cpu().reshape(-1).clone()
    raw = host.view(torch.uint8)
    raw[element * tensor.element_size() + bit // 8] ^= 1 << bit % 8
    tensor.copy_(host.reshape(tensor.shape))


def flipped_somewhere(device: str, cases: list[tuple[int, int, int, int]]) -> list[Difference | None]:
    """On a rank: what is found when one bit differs; before and after, nothing may be found."""
    found = [compare(copies(device))]
    for rank, place, element, bit in cases:
        mine = copies(device)
        if rank == dist.get_rank():
            flip(mine.tensors[place].tensor, element, bit)
        found.append(compare(mine))
    return [*found, compare(copies(device))]


def test_one_flipped_bit_is_named(four: tuple[KeptWorld, str]) -> None:
    world, device = four
    drawn = random.Random(2)
    own = tensors("cpu")
    cases = []
    for _ in range(24):
        place = drawn.randrange(len(own))
        tensor = own[place].tensor
        bit = drawn.randrange(8 * tensor.element_size())
        cases.append((drawn.randrange(4), place, drawn.randrange(tensor.numel()), bit))
    by_rank = world.run(flipped_somewhere, device, cases)
    assert all(found == by_rank[0] for found in by_rank), "all ranks know the same"
    first, *found, last = by_rank[0]
    assert first is None
    assert last is None
    for difference, (rank, place, element, bit) in zip(found, cases, strict=True):
        named = own[place]
        assert (difference.name, difference.odd, difference.further) == (named.name, (rank,), 0)
        assert difference.known
        told = difference.elements[rank]
        assert list(difference.elements) == [rank]
        assert told.index == tuple(
            int(each) for each in torch.unravel_index(torch.tensor(element), named.tensor.shape)
        )
        assert (told.flipped(), told.count) == (bit, 1)
        wanted = named.tensor.reshape(-1)[element].item()
        assert told.there == pytest.approx(wanted)
        assert f"rank {rank} differs from ranks" in str(difference)
        assert f"bit {bit} alone; 1 of {named.tensor.numel()} differ" in str(difference)


def two_of_four(device: str) -> list[Difference | None]:
    """On a rank: groups of two, in one of which the ranks differ in several tensors."""
    made = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rank = dist.get_rank()
    mine = copies(device, ((0, 1), (2, 3))[rank // 2], made[rank // 2])
    if rank == 3:
        for place in (2, 7, 9):
            mine.tensors[place].tensor.add_(1)
    return [compare(mine)]


def test_two_ranks_have_no_majority(four: tuple[KeptWorld, str]) -> None:
    world, device = four
    found = [each[0] for each in world.run(two_of_four, device)]
    assert found[0] is None
    assert found[1] is None
    assert found[2] == found[3]
    assert (found[3].odd, found[3].known, found[3].further) == ((2, 3), False, 2)
    assert found[3].name == tensors("cpu")[2].name
    assert found[3].elements[3].count == 12
    assert "ranks 2, 3 differ, and no majority says which is right" in str(found[3])


def nans(device: str) -> list[Difference | None]:
    """On a rank: all ranks have a nan in one place, of other bits; then rank 2 has a number there."""
    found = []
    for number in (False, True):
        mine = copies(device)
        tensor = mine.tensors[2].tensor
        raw = torch.tensor([0x7FC00000 + dist.get_rank()], dtype=torch.int32).view(torch.float32)
        tensor[1, 1] = (torch.ones(1) if number and dist.get_rank() == 2 else raw).to(device)[0]
        found.append(compare(mine))
    return found


def test_nans_are_the_same_whatever_their_bits(four: tuple[KeptWorld, str]) -> None:
    world, device = four
    for alike, other in world.run(nans, device):
        assert alike is None
        assert (other.odd, other.elements[2].index, other.elements[2].count) == ((2,), (1, 1), 1)


def none(device: str) -> Difference | None:
    """On a rank: no rank has anything, as on a stage whose parameters are frozen."""
    return compare(Copies("dp", None, (0, 1, 2, 3), copies(device).device, []))


def test_nothing_is_the_same_everywhere(four: tuple[KeptWorld, str]) -> None:
    world, device = four
    assert world.run(none, device) == [None] * 4


def other_tensors(device: str) -> list[Difference | None]:
    """On a rank: one rank lacks a tensor, has another shape or dtype, or has them in another order."""
    found = []
    for case in range(4):
        mine = copies(device)
        if dist.get_rank() == case:
            what, name, tensor = mine.tensors[6]
            changed = {0: [], 1: [Named(what, name, tensor[:2])], 2: [Named(what, name, tensor.float())]}
            mine.tensors[6:7] = changed.get(case, [mine.tensors[6]])
            mine.tensors.reverse() if case == 3 else None
        found.append(compare(mine))
    return found


def test_what_only_some_ranks_have_is_named(four: tuple[KeptWorld, str]) -> None:
    world, device = four
    by_rank = world.run(other_tensors, device)
    assert all(found == by_rank[0] for found in by_rank)
    missing, shape, dtype, order = by_rank[0]
    name = tensors("cpu")[6].name
    assert [each.odd for each in (missing, shape, dtype)] == [(0,), (1,), (2,)]
    assert {each.name for each in (missing, shape, dtype)} == {name}
    assert "rank 0 has none; rank 1 has [3, 4] of bfloat16" in str(missing)
    assert "rank 1 has [2, 4] of bfloat16" in str(shape)
    assert "rank 2 has [3, 4] of float32" in str(dtype)
    assert "different orders" in str(order)


def taken(work: Callable[[], Any]) -> int:
    """Return the bytes that a piece of work takes of the NPU at its peak."""
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    work()
    return torch.npu.max_memory_allocated() - before


def memory(count: int) -> tuple[int, int]:
    """On a rank: what one large tensor takes to be summed, and many to be compared that all differ."""
    large = torch.ones(2 * PIECE, dtype=torch.bfloat16, device="npu")
    mine = [torch.full((PIECE // 8,), float(dist.get_rank()), device="npu") for _ in range(count)]
    named = [Named("gradient", str(place), tensor) for place, tensor in enumerate(mine)]
    found = Copies("dp", None, (0, 1, 2, 3), torch.device("npu"), named)
    return taken(lambda: checksum(large).tolist()), taken(lambda: compare(found))


def test_a_device_that_is_nearly_full_has_room_for_it(four: tuple[KeptWorld, str]) -> None:
    """Where other seeds let all tensors differ, no copies are made of all of them."""
    world, device = four
    if device == "cpu":
        pytest.skip("the host's memory is not counted by tensors")
    piece, count = 8 * PIECE, 16
    for summed, compared in world.run(memory, count):
        assert summed < 1.1 * piece
        assert compared < count * (PIECE // 8) * 4
