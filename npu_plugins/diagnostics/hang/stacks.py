"""Where the threads of this process are, and whether the one that runs the program waits for other ranks."""

from __future__ import annotations

import linecache
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from npu_plugins.diagnostics.hang.dump import Call, Frame
from npu_plugins.diagnostics.hang.recorder import C10D

DEPTH = 60
MAIN = "MainThread"
_WAITING_FILES = (C10D, "torch/distributed/rendezvous.py")
_WAITING_CALL = re.compile(r"\.wait\(|store\w*\.get\(", re.IGNORECASE)
"""Calls into C++ that wait: `work.wait()`, `store.wait([...])`, `store.get(...)`."""
_P2P = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}


@dataclass(frozen=True)
class Spot:
    """What the main thread is waiting in, so that two looks can tell whether it is still the same wait."""

    frame: FrameType
    """Held, so that no other frame can have its identity. It keeps the frame's locals alive until the next
    look, so let go of a spot that is not seen twice."""
    instruction: int
    by_itself: bool
    """True in a function of torch.distributed, which is entered anew for every wait. Otherwise the program's
    own function waits, maybe again and again in a loop."""
    sleeps: int
    """How often the main thread has gone to sleep so far; -1 where the system does not tell."""

    def same_wait(self, later: Spot) -> bool:
        """Return whether `later` is still this wait, with no doubt: a thread that only slept did not wake."""
        if self.frame is not later.frame or self.instruction != later.instruction:
            return False
        return self.by_itself or (self.sleeps == later.sleeps != -1)


def stack_of(frame: FrameType | None) -> tuple[Frame, ...]:
    """Return a stack, innermost frame first."""
    return tuple(
        Frame(each.f_code.co_filename, each.f_lineno or 0, each.f_code.co_name)
        for each in islice(_outwards(frame), DEPTH)
    )


def all_stacks() -> dict[str, tuple[Frame, ...]]:
    """Return the stacks of all threads but the one that asks; the program's is `MAIN`."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, here = threading.main_thread().ident, threading.get_ident()
    found: dict[str, tuple[Frame, ...]] = {}
    for ident, frame in sys._current_frames().items():
        if ident == here and ident != main:
            continue
        name = MAIN if ident == main else names.get(ident) or f"thread {ident}"
        found[name if name not in found else f"{name} {ident}"] = stack_of(frame)
    return found


def waiting_spot() -> Spot | None:
    """Return where the main thread waits for other ranks; None if it computes, or waits for another thing."""
    frame = _main_frame()
    if frame is None:
        return None
    by_itself = _in_files(frame, _WAITING_FILES)
    if not by_itself and not _WAITING_CALL.search(_source(frame)):
        return None
    return Spot(frame, frame.f_lasti, by_itself, _sleeps())


def point_to_point(created: float) -> Call | None:
    """Return the point-to-point call of torch.distributed that the main thread is in: gloo's ring has none.

    Args:
        created: seconds since 1970 from which on it is known to be there.

    Returns:
        The call, with sequence 0, since nobody counts them; None if the main thread is in no such call.
    """
    for frame in islice(_outwards(_main_frame()), DEPTH):
        if frame.f_code.co_name in _P2P and _in_files(frame, (C10D,)):
            return _described(frame, created)
    return None


def _described(frame: FrameType, created: float) -> Call | None:
    dist: Any = sys.modules["torch.distributed"]
    local: Mapping[str, Any] = frame.f_locals
    tensor, name = local.get("tensor"), frame.f_code.co_name
    group = local.get("group") or dist.distributed_c10d._world.default_pg
    if tensor is None or group is None:
        return None
    peer, side = local.get(_P2P[name]), _P2P[name]
    if peer is None and local.get(f"group_{side}") is not None:
        peer = dist.get_global_rank(group, local[f"group_{side}"])
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Call(
        group=str(group.group_name),
        sequence=0,
        p2p=True,
        op=name.removeprefix("i"),
        input_shapes=(tuple(tensor.shape),),
        input_dtypes=(dtype,),
        output_shapes=(tuple(tensor.shape),),
        output_dtypes=(dtype,),
        state="scheduled",
        created=created,
        stack=stack_of(frame),
        peer=peer,
    )


def _main_frame() -> FrameType | None:
    main = threading.main_thread().ident
    return None if main is None else sys._current_frames().get(main)


def _outwards(frame: FrameType | None) -> Any:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _in_files(frame: FrameType, files: tuple[str, ...]) -> bool:
    return frame.f_code.co_filename.replace("\\", "/").endswith(files)


def _source(frame: FrameType) -> str:
    """The text of the call that a frame is in; of its line where Python (3.10) does not know the columns."""
    code, line = frame.f_code, linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0)
    positions = getattr(code, "co_positions", None)
    if positions is None:
        return line
    first, last, start, end = next(islice(positions(), frame.f_lasti // 2, None), (None,) * 4)
    if first is None or last is None or start is None or end is None:
        return line
    if first != last:
        return "".join(linecache.getline(code.co_filename, number) for number in range(first, last + 1))
    return line.encode()[start:end].decode(errors="replace")


def _sleeps() -> int:
    native = threading.main_thread().native_id
    status = Path(f"/proc/self/task/{native}/status")
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return -1
    counts = [line.split()[1] for line in lines if line.startswith("voluntary_ctxt_switches")]
    return int(counts[0]) if counts else -1
