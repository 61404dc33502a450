"""The most bytes of tensors that are alive at once, counted by torch's own allocator."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch.profiler import ProfilerActivity, profile, record_function

MARK = "the measured step"

Built = TypeVar("Built")


def most_alive(build: Callable[[], Built], step: Callable[[Built], Any]) -> tuple[Built, int]:
    """Build, then run two steps; return what was built and the bytes of the second step's peak.

    While its profiler counts memory, torch's CPU allocator keeps the sum of all bytes that it gave out and
    has not got back. So everything is counted that was allocated since before `build`: parameters, buffers
    that are kept from step to step, activations, gradients and temporaries, to the byte; but nothing outside
    of tensors.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        built = build()
        step(built)
        with record_function(MARK):
            step(built)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    mark = next(event for event in events if event.get("name") == MARK and event.get("ph") == "X")
    start, stop = mark["ts"], mark["ts"] + mark["dur"]
    counts = [event for event in events if event.get("name") == "[memory]"]
    counts.sort(key=lambda event: event["ts"])
    origin = counts[0]["args"]["Total Allocated"] - counts[0]["args"]["Bytes"]
    return built, max(e["args"]["Total Allocated"] for e in counts if start <= e["ts"] <= stop) - origin
