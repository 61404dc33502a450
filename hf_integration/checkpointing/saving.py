"""How a rank writes its part of a checkpoint, step by step with the others."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from hf_integration.errors import TrainingInputError
from npu_plugins.checkpoint import CheckpointError
from npu_plugins.checkpoint.ranks import Ranks

_ROOM_TO_WRITE_AT_ALL = 1 << 16


def write_together(parts: Sequence[Callable[[Path], None]], folder: Path, ranks: Ranks) -> None:
    """Write the parts of a checkpoint, each once the one before has succeeded on every rank.

    A part may communicate, as long as a rank that fails in it leaves no other waiting there. Without the
    agreement in between, a rank whose disk is full would miss the next part, where the others wait for it.

    Args:
        parts: each is called with the folder.
        folder: the checkpoint's, there already.
        ranks: all ranks of the job, which call this together.

    Raises:
        Exception: whatever a part raised on this rank. Where only others failed this returns, and leaves it
            to the caller (`npu_plugins.checkpoint.save_checkpoint`) to tell all ranks.
    """
    for part in parts:
        problem = None
        try:
            part(folder)
        except Exception as error:  # whatever it is, the other ranks wait for this one and are told
            problem = error
        if any(ranks.tell(problem is not None)):
            if problem is None:
                return
            raise _named(problem, folder)


def _named(problem: Exception, folder: Path) -> Exception:
    """Return the error with its real reason: of a full disk some writers say only that they failed."""
    if isinstance(problem, TrainingInputError):
        return CheckpointError(str(problem))  # a sentence already
    if isinstance(problem, OSError) or shutil.disk_usage(folder).free >= _ROOM_TO_WRITE_AT_ALL:
        return problem
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    full.__cause__ = problem
    return full
