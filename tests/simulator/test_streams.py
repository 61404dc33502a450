"""Streams and events of simulated NPUs: asynchronous and ordered as on a card.

What keeps a stream busy for a known time is a collective whose peer comes late.
"""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from tests.harness.fixtures import on_ranks

pytestmark = pytest.mark.npu

LATE = 0.5  # seconds rank 1 comes late
SOON = 0.35  # a host call that does not wait for rank 1 is back by then


def late_all_reduce(tensor: torch.Tensor) -> dist.Work | None:
    """An asynchronous all-reduce that takes LATE seconds on rank 0: rank 1 sleeps first."""
    if dist.get_rank() == 1:
        time.sleep(LATE)
    return dist.all_reduce(tensor, async_op=True)


def warmed_up(elements: int = 1000) -> torch.Tensor:
    """Ones on this rank's NPU, after a first collective made the communicator."""
    dist.all_reduce(torch.zeros(1, device="npu"))
    tensor = torch.ones(elements, device="npu")
    torch.npu.synchronize()
    dist.barrier()
    torch.npu.synchronize()
    return tensor


@on_ranks(2)
def test_the_host_runs_ahead_of_a_collective() -> None:
    tensor = warmed_up()
    start = time.monotonic()
    work = late_all_reduce(tensor)
    launched = time.monotonic() - start
    if dist.get_rank() == 0:
        assert launched < SOON, "launching must not wait for the peer"
        assert not work.is_completed()
    work.wait()
    torch.npu.synchronize()
    assert work.is_completed()
    assert time.monotonic() - start >= LATE * 0.9
    assert tensor.sum().item() == 2000


@on_ranks(2)
def test_events_tell_when_the_stream_got_there() -> None:
    tensor = warmed_up()
    work = late_all_reduce(tensor)
    work.wait()  # the current stream now waits for the collective; the host does not
    event = torch.npu.Event()
    event.record()
    if dist.get_rank() == 0:
        assert not event.query()
    start = time.monotonic()
    event.synchronize()
    if dist.get_rank() == 0:
        assert time.monotonic() - start > LATE * 0.4
    assert event.query()
    assert tensor[0].item() == 2


@on_ranks(2)
def test_elapsed_time_is_measured_on_the_stream() -> None:
    tensor = warmed_up()
    before, after = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    before.record()
    late_all_reduce(tensor).wait()
    after.record()
    after.synchronize()
    elapsed = before.elapsed_time(after)
    if dist.get_rank() == 0:
        assert LATE * 0.8e3 < elapsed < LATE * 10e3, f"{elapsed} ms"
    else:
        assert elapsed > 0
    assert after.elapsed_time(before) <= 0


@on_ranks(2)
def test_another_stream_is_not_held_up() -> None:
    tensor = warmed_up()
    side = torch.npu.Stream()
    late_all_reduce(tensor).wait()
    start = time.monotonic()
    with torch.npu.stream(side):
        assert torch.npu.current_stream() == side
        independent = torch.arange(100, device="npu").sum().item()
    if dist.get_rank() == 0:
        assert time.monotonic() - start < SOON, "work on another stream does not wait for this one"
    assert independent == 4950
    assert torch.npu.current_stream() == torch.npu.default_stream()
    assert tensor[0].item() == 2


@on_ranks(2)
def test_wait_stream_and_wait_event_order_streams() -> None:
    tensor = warmed_up()
    side, third = torch.npu.Stream(), torch.npu.Stream()
    late_all_reduce(tensor).wait()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        doubled = tensor * 2
        done = side.record_event()
    third.wait_event(done)
    with torch.npu.stream(third):
        result = doubled + 1
    torch.npu.current_stream().wait_stream(third)
    assert result.unique().tolist() == [5.0], "2 from the all-reduce, doubled, and one"


@on_ranks(2)
def test_a_copy_to_the_host_waits_for_what_comes_before_it() -> None:
    tensor = warmed_up()
    late_all_reduce(tensor).wait()
    assert tensor.cpu().tolist() == [2.0] * 1000
    pinned = torch.zeros(1000).pin_memory()
    late_all_reduce(tensor).wait()
    start = time.monotonic()
    pinned.copy_(tensor, non_blocking=True)
    if dist.get_rank() == 0:
        assert time.monotonic() - start < SOON, "a non-blocking copy to pinned memory does not wait"
    torch.npu.synchronize()
    assert pinned.tolist() == [4.0] * 1000


@on_ranks(2)
def test_synchronize_waits_for_every_stream() -> None:
    tensor = warmed_up()
    side = torch.npu.Stream()
    start = time.monotonic()
    with torch.npu.stream(side):
        late_all_reduce(tensor).wait()
    torch.npu.synchronize()
    assert time.monotonic() - start >= LATE * 0.9
    assert side.query() and tensor[0].item() == 2


@on_ranks(2)
def test_stream_synchronize_waits_for_its_own_work_only() -> None:
    tensor = warmed_up()
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        late_all_reduce(tensor).wait()
    start = time.monotonic()
    torch.npu.default_stream().synchronize()
    if dist.get_rank() == 0:
        assert time.monotonic() - start < SOON
        assert not side.query()
    side.synchronize()
    assert side.query() and tensor[0].item() == 2


@on_ranks(2)
def test_record_stream_keeps_memory_from_being_reused() -> None:
    gate = warmed_up()
    side = torch.npu.Stream()
    block = torch.full((1 << 20,), 3.0, device="npu")
    address = block.data_ptr()
    late_all_reduce(gate).wait()
    side.wait_stream(torch.npu.current_stream())
    block.record_stream(side)
    del block
    fresh = torch.empty(1 << 20, device="npu")
    if dist.get_rank() == 0:
        assert fresh.data_ptr() != address, "the side stream has not passed yet"
    del fresh
    torch.npu.synchronize()
    torch.npu.empty_cache()
    assert gate[0].item() == 2


@on_ranks(1, backend=None)
def test_without_record_stream_a_block_is_reused_at_once() -> None:
    block = torch.empty(1 << 20, device="npu")
    address = block.data_ptr()
    del block
    assert torch.empty(1 << 20, device="npu").data_ptr() == address


@on_ranks(1, backend=None)
def test_streams_have_identity_priority_and_device() -> None:
    torch.npu.set_device(1)
    low, high = torch.npu.Stream(), torch.npu.Stream(priority=-1)
    assert low != high and low.device == torch.device("npu:1")
    assert torch.npu.default_stream(1).device.index == 1
    with torch.npu.stream(high):
        assert torch.npu.current_stream().npu_stream == high.npu_stream
    with torch.npu.device(2):
        assert torch.npu.current_device() == 2
        assert torch.ones(2, device="npu").device.index == 2
    assert torch.npu.current_device() == 1


@on_ranks(1, backend=None)
def test_an_event_that_was_not_recorded_refuses_to_measure() -> None:
    recorded, unrecorded = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    assert unrecorded.query(), "an event that was never recorded is complete"
    recorded.record()
    torch.npu.synchronize()
    with pytest.raises(RuntimeError, match="Both events must be recorded"):
        recorded.elapsed_time(unrecorded)


@on_ranks(1, backend=None)
def test_many_streams_in_flight_give_right_results() -> None:
    streams = [torch.npu.Stream() for _ in range(8)]
    source = torch.arange(10_000, dtype=torch.float32, device="npu")
    torch.npu.synchronize()
    results = []
    for number, stream in enumerate(streams):
        with torch.npu.stream(stream):
            value = source.clone()
            for _ in range(20):
                value = value + number
            results.append(value)
    for stream in streams:
        torch.npu.current_stream().wait_stream(stream)
    for number, value in enumerate(results):
        assert torch.equal(value.cpu(), torch.arange(10_000, dtype=torch.float32) + 20 * number)
