"""Memory of simulated NPUs: torch_npu's own allocator meets a limit, reports it and recovers."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterator

import pytest
import torch

from tests.harness import RankPool, World
from tests.harness.kept import kept
from tests.harness.npu import rank_environment

pytestmark = pytest.mark.npu

MIB = 1 << 20
CAPACITY = 1 << 30


@pytest.fixture(scope="module")
def small_pool() -> Iterator[RankPool]:
    """Ranks of a machine whose NPUs have 1 GiB each."""
    env = rank_environment() | {"NPU_SIM": "2", "NPU_SIM_HBM": "1GiB", "NPU_SIM_NODE": f"small-{os.getpid()}"}
    with contextlib.closing(RankPool(env)) as pool:
        yield pool


@pytest.fixture
def lone(small_pool: RankPool) -> Iterator[World]:
    """One process on such a machine."""
    with small_pool.world(1, None) as world:
        yield world


@pytest.fixture
def pair(small_pool: RankPool) -> Iterator[World]:
    """Two processes on such a machine."""
    with small_pool.world(2, None) as world:
        yield world


def mebibytes(count: int) -> torch.Tensor:
    """A tensor whose block has `count` MiB: torch_npu adds 32 bytes to each and rounds up to 512."""
    return torch.empty(count * MIB - 512, dtype=torch.uint8, device="npu:0")


def test_total_memory_is_what_was_asked_for(lone: World) -> None:
    def body() -> tuple[int, int]:
        torch.npu.set_device(0)
        return torch.npu.mem_get_info(0)[1], torch.npu.get_device_properties(0).total_memory

    assert lone.run(body) == [(CAPACITY, CAPACITY)]


def test_out_of_memory_is_torch_npus_error_and_is_survived(lone: World) -> None:
    def body() -> None:
        kept = [mebibytes(300)]
        with pytest.raises(
            torch.OutOfMemoryError, match=r"NPU out of memory\. Tried to allocate 800\.00 MiB"
        ):
            mebibytes(800)
        assert torch.npu.memory_allocated() == 300 * MIB, "a failed request takes nothing"
        kept.clear()
        gc.collect()
        big = mebibytes(800)  # the cached 300 MiB must be given back for this to fit
        assert big.fill_(7)[-1].item() == 7
        assert torch.npu.memory_stats()["num_ooms"] == 1

    lone.run(body)


def test_filling_up_step_by_step_ends_in_out_of_memory_and_the_data_is_intact(lone: World) -> None:
    def body() -> int:
        blocks: list[torch.Tensor] = []
        with pytest.raises(torch.OutOfMemoryError):
            for number in range(100):
                blocks.append(mebibytes(64).fill_(number))
        assert [block[number].item() for number, block in enumerate(blocks)] == list(range(len(blocks)))
        return len(blocks)

    (count,) = lone.run(body)
    assert 14 <= count <= 16


def test_free_memory_in_pieces_serves_a_large_block(lone: World) -> None:
    """A card maps its pages wherever they lie: only how much is free counts."""

    def body() -> float:
        pieces = [mebibytes(100) for _ in range(10)]
        for piece in pieces:
            piece.fill_(1)
        del pieces[::2], piece
        gc.collect()
        torch.npu.empty_cache()
        large = mebibytes(400).fill_(2)
        assert all(bool((piece == 1).all()) for piece in pieces)
        return float(large[::4096].sum())

    assert lone.run(body) == [2.0 * len(range(0, 400 * MIB - 512, 4096))]


def test_training_goes_on_after_out_of_memory(lone: World) -> None:
    def body() -> None:
        model = torch.nn.Linear(64, 64).npu()
        with pytest.raises(torch.OutOfMemoryError):
            model(torch.empty(4 * MIB, 64, device="npu"))
        loss = model(torch.ones(8, 64, device="npu")).square().mean()
        loss.backward()
        assert torch.isfinite(model.weight.grad).all().item()

    lone.run(body)


def test_statistics_follow_allocations(lone: World) -> None:
    def body() -> None:
        torch.npu.reset_peak_memory_stats()
        base = torch.npu.memory_allocated()
        first, second = mebibytes(20), mebibytes(30)
        assert torch.npu.memory_allocated() - base == 50 * MIB
        assert torch.npu.memory_reserved() >= torch.npu.memory_allocated()
        del first, second
        assert torch.npu.memory_allocated() == base
        assert torch.npu.max_memory_allocated() - base == 50 * MIB
        reserved = torch.npu.memory_reserved()
        assert reserved >= 50 * MIB, "freed blocks stay in torch_npu's cache"
        torch.npu.empty_cache()
        assert torch.npu.memory_reserved() < reserved
        torch.npu.reset_peak_memory_stats()
        assert torch.npu.max_memory_allocated() == base
        stats = torch.npu.memory_stats()
        assert stats["allocation.all.allocated"] >= 2 and stats["allocated_bytes.all.current"] == base
        assert "NPU memory summary" in torch.npu.memory_summary()

    lone.run(body)


def test_mem_get_info_falls_by_what_is_reserved_and_rises_again(lone: World) -> None:
    def body() -> tuple[int, int, int]:
        torch.npu.set_device(0)
        before = torch.npu.mem_get_info(0)[0]
        block = mebibytes(256)
        during = torch.npu.mem_get_info(0)[0]
        del block
        torch.npu.empty_cache()
        return before, during, torch.npu.mem_get_info(0)[0]

    ((before, during, after),) = lone.run(body)
    assert before - during == 256 * MIB
    assert after == before


def test_another_process_on_the_same_npu_counts(pair: World) -> None:
    def allocate(taker: int) -> None:
        torch.npu.set_device(0)
        if int(os.environ["RANK"]) == taker:
            kept["block"] = mebibytes(600)

    def look() -> tuple[int, bool]:
        time.sleep(1.1)  # other processes' use is looked up at most once a second
        free = torch.npu.mem_get_info(0)[0]
        if int(os.environ["RANK"]) == 0:
            return free, True
        try:
            mebibytes(600)
        except torch.OutOfMemoryError:
            return free, False
        return free, True

    pair.run(allocate, 0)
    (free_here, _), (free_there, fits) = pair.run(look)
    assert not fits, "rank 0 holds 600 of 1024 MiB of the same NPU"
    assert free_here == free_there <= CAPACITY - 600 * MIB


def test_npus_have_memory_of_their_own(pair: World) -> None:
    def body() -> int:
        rank = int(os.environ["RANK"])
        torch.npu.set_device(rank)
        block = torch.empty(700 * MIB, dtype=torch.uint8, device=f"npu:{rank}")
        return block.fill_(rank + 1)[-1].item()

    assert pair.run(body) == [1, 2]


def test_a_killed_process_gives_its_memory_back(small_pool: RankPool) -> None:
    def fill() -> None:
        torch.npu.set_device(0)
        kept["block"] = mebibytes(900)

    def free() -> int:
        torch.npu.set_device(0)
        return torch.npu.mem_get_info(0)[0]

    with small_pool.world(1, None) as holder:
        holder.run(fill)
        with small_pool.world(1, None) as observer:
            assert observer.run(free)[0] <= CAPACITY - 900 * MIB
        holder.kill()
    with small_pool.world(1, None) as observer:
        assert observer.run(free)[0] == CAPACITY


def test_pinned_memory_is_host_memory(lone: World) -> None:
    def body() -> None:
        torch.npu.set_device(0)
        before = torch.npu.mem_get_info(0)[0]
        pinned = torch.arange(1 << 20, dtype=torch.float32).pin_memory()
        assert pinned.is_pinned() and pinned.device.type == "cpu"
        assert torch.npu.mem_get_info(0)[0] == before
        moved = pinned.to("npu:0", non_blocking=True)
        torch.npu.synchronize()
        assert torch.equal(moved.cpu(), pinned)

    lone.run(body)


def test_empty_tensors_take_no_memory(lone: World) -> None:
    def body() -> None:
        base = torch.npu.memory_allocated()
        empty = torch.empty(0, 5, device="npu")
        assert torch.npu.memory_allocated() == base
        assert (empty + 1).shape == (0, 5) and empty.sum().item() == 0

    lone.run(body)
