"""Whichever thread frees what is on an NPU, it does so on the NPU that the process uses."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness import World


class Cycle:
    """Something that only the garbage collector frees."""

    def __init__(self, content: Any) -> None:
        self.content = content
        self.itself = self


def in_a_thread(work: Callable[[], Any]) -> None:
    """Do `work` in a thread that has set no device."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def collect_events_elsewhere() -> tuple[list[bool], list[bool], float]:
    """Return which NPUs have a context before and after a thread collects an event, and then a gradient."""
    import torch
    import torch_npu

    def contexts() -> list[bool]:
        return [torch_npu._C._npu_hasPrimaryContext(device) for device in range(torch.npu.device_count())]

    x = torch.ones(3, device="npu", requires_grad=True)
    gc.disable()
    event = torch.npu.Event(enable_timing=True)
    event.record()
    Cycle([event, x * 2])
    before = contexts()
    del event
    in_a_thread(gc.collect)
    gc.enable()
    after = contexts()
    (x * 2).sum().backward()  # ends in abort() where another NPU has a context and no stream
    assert x.grad is not None
    return before, after, x.grad.sum().item()


def collecting_thread_keeps_its_device() -> list[int]:
    """Return the device of a thread before and after it collects garbage."""
    import torch
    import torch_npu

    torch.ones(3, device="npu")
    found: list[int] = []

    def collect() -> None:
        found.append(torch_npu._C._npu_getDevice())
        gc.collect()
        found.append(torch_npu._C._npu_getDevice())

    in_a_thread(collect)
    return found


@pytest.mark.npu
@pytest.mark.ranks(2)
def test_a_collection_in_another_thread_makes_no_context_on_the_first_npu(ranks: World) -> None:
    for rank, (before, after, gradient) in enumerate(ranks.run(collect_events_elsewhere)):
        assert [device for device, has in enumerate(before) if has] == [rank]
        assert after == before
        assert gradient == 6.0


@pytest.mark.npu
@pytest.mark.ranks(2)
def test_a_thread_is_lent_the_device_for_the_collection_only(ranks: World) -> None:
    assert ranks.run(collecting_thread_keeps_its_device) == [[0, 0], [0, 0]]
