"""Tells processes that only start ranks from the ranks themselves."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

_PROGRAMS = (
    "deepspeed",
    "deepspeed.pt",
    "ds",
    "torchrun",
    "torch_npu_run",
    "accelerate",
    "accelerate-launch",
)
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher", "accelerate.commands")


def is_launcher(command: Sequence[str] | None = None) -> bool:
    """True when this process (or `command`, as in sys.orig_argv) is `deepspeed`, `torchrun` or the like."""
    words = list(sys.orig_argv if command is None else command)
    for index, word in enumerate(words[1:], start=1):
        if word == "-m":
            return "".join(words[index + 1 : index + 2]).startswith(_MODULES)
        if word == "-c":
            return False
        if not word.startswith("-"):
            return os.path.basename(word) in _PROGRAMS
    return bool(words) and os.path.basename(words[0]) in _PROGRAMS


def is_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """True when a launcher started this process as one rank of a job."""
    return "RANK" in environ or "LOCAL_RANK" in environ
