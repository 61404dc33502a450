"""Collectives: real backends give what is expected, wrong elements are counted, formulas are nccl-tests'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from npu_plugins.comm.devices import device_for, make_current
from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.diagnostics.comm_perf.collectives import COLLECTIVES, Call, Collective, collective_named
from npu_plugins.diagnostics.comm_perf.measure import Repeats, measure
from tests.harness import RankPool, World

NAMES = [each.name for each in COLLECTIVES]
ONCE = Repeats(timed=1, warmup=0, checked=1)


def call_of(collective: Collective, count: int, dtype: torch.dtype, in_place: bool, **more: Any) -> Call:
    """Buffers of this rank in the whole world."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = device_for(dist.get_backend(), None)
    make_current(device)
    send, receive = collective.buffers(count, dtype, ranks, rank, device, in_place)
    return Call(send, receive, None, range(ranks), rank, **more)


def every_way() -> dict[str, int]:
    """Wrong elements of every collective, in both ways, with a root and reductions."""
    found = {}
    for collective in COLLECTIVES:
        for in_place in (False, True)[: 1 + collective.in_place]:
            for reduction in ("sum", "prod", "min", "max", "avg") if collective.reduces else ("sum",):
                # cards do not multiply bfloat16
                dtype = torch.float32 if reduction == "prod" else torch.bfloat16
                for root in (0, 2) if collective.rooted else (0,):
                    call = call_of(collective, 1100, dtype, in_place, root=root, reduction=reduction)
                    key = f"{collective.name} {reduction} root {root} in_place {in_place}"
                    found[key] = measure(collective, call, 1100, ONCE).wrong
    return found


@pytest.mark.parametrize("backend", ["gloo", pytest.param("hccl", marks=pytest.mark.npu)])
def test_every_collective_gives_what_is_expected_to_the_bit(backend: str, rank_pool: RankPool) -> None:
    with rank_pool.world(4, backend) as world:
        for found in world.run(every_way):
            assert len(found) == 58
            assert {key: wrong for key, wrong in found.items() if wrong} == {}


def damaged(name: str, place: int) -> int:
    """Wrong elements if rank 1 flips a bit of one element that it receives."""
    whole = collective_named(name)

    def run(call: Call) -> None:
        whole.run(call)
        if call.rank == 1:
            call.receive.view(torch.uint8)[place] ^= 1

    collective = replace(whole, run=run)
    return measure(collective, call_of(collective, 64, torch.float32, False), 64, ONCE).wrong


def swapped() -> int:
    """Wrong elements if the parts of an all-gather come in another order."""
    whole = collective_named("all_gather")

    def run(call: Call) -> None:
        whole.run(call)
        call.receive.copy_(call.receive.view(2, -1).flip(0).reshape(-1))

    return measure(replace(whole, run=run), call_of(whole, 64, torch.float32, False), 64, ONCE).wrong


def unmoved() -> list[int]:
    """Wrong elements of collectives that do nothing."""
    names = ("all_reduce", "broadcast", "sendrecv", "all_to_all")
    idle = [replace(collective_named(name), run=lambda call: None) for name in names]
    return [measure(each, call_of(each, 64, torch.float32, False), 64, ONCE).wrong for each in idle]


@pytest.mark.ranks(2, backend="gloo")
def test_wrong_elements_are_counted_where_they_are(ranks: World) -> None:
    for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv"):
        assert ranks.run(damaged, name, 5) == [0, 1]
    assert ranks.run(damaged, "reduce", 5) == [0, 0]  # only the root is told anything
    assert all(wrong > 100 for wrong in ranks.run(swapped))
    assert all(wrong > 60 for each in ranks.run(unmoved) for wrong in each)


def timed() -> tuple[float, float]:
    """Seconds of a call as measured until done, and those that the process is busy."""
    collective = collective_named("all_reduce")
    call = call_of(collective, 1 << 16, torch.float32, True)
    busy = measure(collective, call, 1 << 16, Repeats(timed=5, cpu_time=True)).seconds
    return measure(collective, call, 1 << 16, Repeats(timed=5)).seconds, busy


@pytest.mark.npu
@pytest.mark.ranks(2)
def test_time_is_that_of_the_device_or_of_the_process(ranks: World) -> None:
    for seconds, busy in ranks.run(timed):
        assert seconds > 0
        assert busy > 0


def speeds() -> dict[str, float]:
    """Bus bandwidth in GB/s of a megabyte."""
    found = {}
    for name in ("sendrecv", "all_reduce", "broadcast"):
        collective = collective_named(name)
        call = call_of(collective, 10**6, torch.int8, False)
        seconds = measure(collective, call, 10**6, Repeats(timed=2, warmup=0, checked=0)).seconds
        found[name] = collective.bandwidths(10**6, seconds, call.ranks)[1]
    return found


@pytest.mark.npu
@pytest.mark.ranks(2, env={"NPU_SIM_SLOW_LINK": "0-1:20"})
def test_no_more_is_measured_than_the_link_carries(ranks: World) -> None:
    """A simulated link takes at least bytes / speed, whatever the CPU does."""
    for found in ranks.run(speeds):
        assert all(0 < speed <= 0.0201 for speed in found.values()), found


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("all_reduce", 2 * 3 / 4),
        ("reduce_scatter", 3 / 4),
        ("all_gather", 3 / 4),
        ("broadcast", 1),
        ("reduce", 1),
        ("all_to_all", 3 / 4),
        ("gather", 3 / 4),
        ("scatter", 3 / 4),
        ("sendrecv", 1),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(name: str, factor: float) -> None:
    algbw, busbw = collective_named(name).bandwidths(4 * 10**9, 2.0, ranks=4)
    assert algbw == 2.0
    assert busbw == pytest.approx(2.0 * factor)


def test_a_hypercube_moves_what_a_rank_has_not() -> None:
    assert collective_named("hypercube").bandwidths(4 * 10**9, 2.0, ranks=4) == (1.5, 1.5)


def test_sizes_and_counts_are_those_of_nccl_tests() -> None:
    """Counts of ``GetCollByteCount``: parts begin at multiples of 16 bytes."""
    whole, parts = collective_named("all_reduce"), collective_named("all_gather")
    assert whole.count(1000, torch.float32, 3) == 250
    assert parts.count(1000, torch.float32, 3) == 80  # 250 // 3 = 83, of which 80 are whole 16 bytes
    assert parts.count(1000, torch.int8, 3) == 320
    assert parts.count(8, torch.float32, 2) == 0
    assert parts.size(80, torch.float32, 3) == 960
    assert collective_named("reduce_scatter").size(80, torch.float32, 3) == 960
    assert whole.size(250, torch.float32, 3) == 1000


def test_names_are_torchs_and_nccl_tests_and_others_are_refused() -> None:
    assert collective_named("alltoall") is collective_named("all_to_all")
    with pytest.raises(DiagnosticsError, match="no collective 'sum'.* the reduction is -o or --redop"):
        collective_named("sum")
