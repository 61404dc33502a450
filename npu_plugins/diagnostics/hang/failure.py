"""What a rank knows of itself in an emergency: its dump, the exception that ends it, its device's memory."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from npu_plugins.diagnostics.hang import recorder, stacks
from npu_plugins.diagnostics.hang.dump import Frame, RankDump
from npu_plugins.diagnostics.hang.faults import is_consequence

_MESSAGE_LENGTH = 4000
_CODE = re.compile(r"\bE[A-Z]\d{4}\b")
"""Of an error of CANN: EI0005."""


@dataclass(frozen=True)
class Failure:
    """An exception that nobody caught."""

    kind: str
    message: str
    stack: tuple[Frame, ...]
    """Where it was raised, innermost frame first."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """As `RankDump.memory`, when it was raised."""

    @classmethod
    def of(cls, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Failure:
        """Keep what there is to tell of an exception."""
        frames = [Frame(each.filename, each.lineno or 0, each.name) for each in traceback.extract_tb(trace)]
        return cls(kind.__name__, str(error)[:_MESSAGE_LENGTH], tuple(reversed(frames)), device_memory())

    @property
    def has_code(self) -> bool:
        """Whether the message has a code of CANN, such as EI0005."""
        return bool(_CODE.search(self.message))

    def with_codes_of(self, *texts: str) -> Failure:
        """Return this with those lines of `texts` that have a code of CANN which the message has not."""
        message = self.message
        for line in (line for text in texts for line in text.splitlines()):
            if not set(_CODE.findall(message)).issuperset(_CODE.findall(line)):
                message += f"\n{line}"
        return replace(self, message=message[: 2 * _MESSAGE_LENGTH])


@dataclass(frozen=True)
class Rank:
    """Which rank of which job this process is."""

    rank: int
    world_size: int
    backend: str
    device: str
    """Such as `npu:1`, with "(simulated)" behind it where that is so."""


def take_dump(
    who: Rank,
    ring: recorder.Ring,
    reason: str,
    *,
    waited: float,
    timeout: float,
    failure: Callable[[], Failure | None],
) -> RankDump:
    """Return what this process knows now; call it from any thread but the main one.

    Args:
        who: this process.
        ring: of its calls.
        reason: one of `dump.REASONS`; that of a rank with a `failure` is "exception".
        waited: seconds of its longest wait.
        timeout: seconds that a wait may take.
        failure: the exception that ends it, if there is one by the time of the call.
    """
    now = time.time()
    found = ring.calls()
    point = stacks.point_to_point(now - waited)
    if point is not None and not any(call.p2p and call.state != "completed" for call in found):
        found = (*found, point)
    where = stacks.all_stacks()
    error = failure()  # asked for after the stacks: a main thread that is in its excepthook has told by then
    dump = RankDump(
        rank=who.rank,
        world_size=who.world_size,
        host=platform.node(),
        pid=os.getpid(),
        reason=reason if error is None else "exception",
        taken=now,
        waited=waited,
        timeout=timeout,
        device=who.device,
        backend=who.backend,
        error="" if error is None else f"{error.kind}: {error.message}",
        error_stack=() if error is None else error.stack,
        stacks=where,
        groups=recorder.groups(),
        calls=found,
        memory={} if error is None else dict(error.memory),
    )
    return dump if error is None else _with_failed_call(dump)


def _with_failed_call(dump: RankDump) -> RankDump:
    """Let the last call count as incomplete where the exception says that another rank did not come.

    Both rings take a call for done once it has failed.
    """
    if not dump.calls or not is_consequence(dump):
        return dump
    return replace(dump, calls=(*dump.calls[:-1], replace(dump.calls[-1], state="scheduled")))


def device_memory() -> dict[str, int]:
    """Return bytes of the accelerator that this process uses by word: free, total, allocated, reserved.

    Empty where there is none, or the process has not begun to use it.
    """
    module = accelerator()
    if module is None:
        return {}
    try:
        free, total = module.mem_get_info()
        return {
            "free": free,
            "total": total,
            "allocated": module.memory_allocated(),
            "reserved": module.memory_reserved(),
        }
    except (RuntimeError, AttributeError):  # a failed device tells no more; the failure counts
        return {}


def accelerator() -> Any:
    """Return torch's module of the accelerator that this process uses already, such as torch.npu, or None."""
    torch: Any = sys.modules.get("torch")
    find = getattr(getattr(torch, "accelerator", None), "current_accelerator", None)
    kind = None if find is None else find()
    module = getattr(torch, kind.type, None) if kind is not None else None
    if module is None or not getattr(module, "is_initialized", lambda: False)():
        return None
    return module


def device_index(module: Any) -> int | None:
    """Return the device that the process has memory of; a thread's own idea of it starts at 0."""
    for index in range(module.device_count()):
        if module.memory_reserved(index) > 0:
            return index
    return None
