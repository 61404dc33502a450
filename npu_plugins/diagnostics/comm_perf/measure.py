"""Times one collective and checks what it gives."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.diagnostics.comm_perf.collectives import Call, Collective
from npu_plugins.diagnostics.comm_perf.values import fill, reduced, sent, slack, wrong


@dataclass(frozen=True)
class Repeats:
    """How often a collective runs."""

    timed: int = 20
    warmup: int = 1
    """Before the timed ones."""
    checked: int = 1
    """After them, each with fresh data and its result compared."""
    cpu_time: bool = False
    """Time only how long this process is busy with the calls, and not until they are done."""


@dataclass(frozen=True)
class Seen:
    """What one rank saw."""

    seconds: float
    """Of one call, the mean of those timed."""
    wrong: int
    """Elements that were not as expected, in all checked calls."""


def measure(collective: Collective, call: Call, count: int, repeats: Repeats) -> Seen:
    """Run a collective on this rank's buffers; every rank of the group calls this alike.

    Args:
        collective: to run.
        call: buffers of `collective.buffers`, and the group.
        count: elements that the collective is given.
        repeats: how often.

    Raises:
        RuntimeError: the backend refuses the collective, its dtype or reduction.
    """
    device = call.receive.device
    _load(collective, call)
    for _ in range(repeats.warmup):
        collective.run(call)
    _meet(call)
    clock = _HostClock(device) if device.type == "cpu" or repeats.cpu_time else _DeviceClock(device)
    clock.start()
    for _ in range(repeats.timed):
        collective.run(call)
    seconds = clock.stop(until_done=not repeats.cpu_time) / repeats.timed
    _synchronize(device)
    bad = sum(_wrong_in_one(collective, call, count) for _ in range(repeats.checked))
    return Seen(seconds, bad)


def _wrong_in_one(collective: Collective, call: Call, count: int) -> int:
    parts = collective.expected(call.rank, call.ranks, call.root, count)
    if call.send is not call.receive:
        call.receive.zero_()
    _load(collective, call)
    _meet(call)  # no rank may write to one that still clears its memory
    collective.run(call)
    _synchronize(call.receive.device)
    if not parts:
        return 0
    dtype, reduction = call.receive.dtype, call.reduction if collective.reduces else None
    wanted = torch.empty_like(call.receive)
    each = wanted.numel() // len(parts)
    for place, part in enumerate(parts):
        if part.source is None:
            period = reduced(call.ranks, call.reduction, dtype)
        else:
            period = sent(part.source, call.ranks, None, dtype)
        fill(wanted[place * each : (place + 1) * each], period, part.start)
    return wrong(call.receive, wanted, slack(call.ranks, reduction, dtype))


def _load(collective: Collective, call: Call) -> None:
    """Put into `send` what this rank sends."""
    reduction = call.reduction if collective.reduces else None
    fill(call.send, sent(call.rank, call.ranks, reduction, call.send.dtype))


def _meet(call: Call) -> None:
    """Wait until the device has done everything, and the group's ranks are here."""
    _synchronize(call.receive.device)
    token = torch.zeros(1, dtype=torch.int32, device=call.receive.device)
    dist.all_reduce(token, group=call.group)
    _synchronize(call.receive.device)


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


class _HostClock:
    """Seconds by this process's clock."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def start(self) -> None:
        self.begun = time.perf_counter()

    def stop(self, until_done: bool) -> float:
        if until_done:
            _synchronize(self.device)
        return time.perf_counter() - self.begun


class _DeviceClock:
    """Seconds by two events on the device's stream, which waits for each collective: launches are free."""

    def __init__(self, device: torch.device) -> None:
        event: Any = getattr(torch, device.type).Event
        self.first, self.last = event(enable_timing=True), event(enable_timing=True)

    def start(self) -> None:
        self.first.record()

    def stop(self, until_done: bool) -> float:
        self.last.record()
        self.last.synchronize()
        return self.first.elapsed_time(self.last) / 1e3
