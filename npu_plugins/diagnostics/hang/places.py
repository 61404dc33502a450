"""Where a rank's program stands: the user's own line, and what of a library it is in the middle of."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from npu_plugins.diagnostics.hang.dump import Frame, RankDump

Source = Callable[[Frame], str]

_PACKAGES = frozenset(("site-packages", "dist-packages"))
_OURS = frozenset(("npu_plugins", "hf_integration", "ds_configs"))
_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/python3\.\d+/|^<")
_COMMUNICATION = re.compile(
    r"/torch/distributed/|/deepspeed/comm/|/torch_npu/distributed/|/npu_plugins/comm/"
)
# Functions in which torch's Python waits in C++: for the device, for a collective, for backward's hooks.
_WAITS = frozenset(("synchronize", "wait", "_engine_run_backward"))
_TORCH = re.compile(r"/(?:torch|torch_npu|deepspeed)/")
# In the user's own line: what waits for the device in C, without a Python frame of its own.
_WAITS_IN_LINE = re.compile(
    r"\.(?:item|cpu|tolist|numpy|synchronize|wait|nonzero)\(|\b(?:float|int|bool|print)\("
)


def read_line(frame: Frame) -> str:
    """Return the source text of a frame's line, or nothing where its file cannot be read here."""
    return linecache.getline(frame.file, frame.line).strip()


def frame_text(frame: Frame, source: Source) -> str:
    """Return file, line, function and the text of the line, as in a sentence."""
    text = source(frame)
    return line_text(frame) + (f" (`{text}`)" if text else "")


def line_text(frame: Frame) -> str:
    """Return file, line and function; the file as seen from here, if it is below."""
    path, here = PurePath(frame.file), Path.cwd()
    file = path.relative_to(here) if path.is_relative_to(here) else path
    return f"{file}:{frame.line} in {frame.function}"


def users_frames(stack: Sequence[Frame]) -> tuple[Frame, ...]:
    """Leave out of a stack what is not the user's: torch, DeepSpeed, Python's own modules.

    Where nothing is left, as in a program that is this package's, its frames are taken, else the whole stack.
    """
    users = tuple(frame for frame in stack if not _is_library(frame) and not _is_ours(frame))
    ours = tuple(frame for frame in stack if _is_ours(frame))
    return users or ours or tuple(stack)


def main_stack(dump: RankDump) -> tuple[Frame, ...]:
    """Return where the program runs: the main thread's stack, or that of the exception which ends it."""
    return dump.error_stack or dump.stacks.get("MainThread", ())


def inside(stack: Sequence[Frame]) -> str:
    """Return the function of a library that the user's line called, or nothing if it stands there itself."""
    users = users_frames(stack)
    if not stack or not users or stack[0] == users[0]:
        return ""
    return stack[stack.index(users[0]) - 1].function


def waits_in(stack: Sequence[Frame], source: Source = read_line) -> str:
    """Return what `stack` waits in, a function of torch.distributed or a synchronisation; else nothing."""
    users = users_frames(stack)
    own = users[0] if users else None
    for frame in stack:
        if _COMMUNICATION.search(frame.file) or (frame.function in _WAITS and _TORCH.search(frame.file)):
            return frame.function
        if frame == own:
            found = _WAITS_IN_LINE.search(source(frame))
            return found[0].strip(".(") if found else ""
    return ""


def _is_library(frame: Frame) -> bool:
    return bool(_PACKAGES & set(PurePath(frame.file).parts)) or bool(_STANDARD_LIBRARY.search(frame.file))


def _is_ours(frame: Frame) -> bool:
    return not _is_library(frame) and bool(_OURS & set(PurePath(frame.file).parts))
