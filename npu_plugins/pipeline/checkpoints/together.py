"""Steps of a save or a load that all ranks take or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from npu_plugins.checkpoint.errors import CheckpointError

T = TypeVar("T")


def together(control: Any, action: Callable[[], T]) -> T:
    """Run an action on every rank and return its result, once it has succeeded on all of them.

    Args:
        control: connects the ranks (`npu_plugins.pipeline.control.Control`).
        action: must not communicate in a way that hangs when another rank fails.

    Raises:
        CheckpointError: on every rank, the same words, if it failed on one.
    """
    problem: Exception | None = None
    result: Any = None
    try:
        result = action()
    except Exception as error:  # whatever it is: the others wait for this rank's word
        problem = error
    told = control.texts("" if problem is None else _sentence(problem))
    failed = {text: rank for rank, text in reversed(list(enumerate(told))) if text}
    if failed:
        text, rank = min(failed.items(), key=lambda item: item[1])
        more = f" (and {len(failed) - 1} other ranks failed in other ways)" if len(failed) > 1 else ""
        raise CheckpointError(f"rank {rank}: {text}{more}") from problem
    return result


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, CheckpointError) else f"{type(error).__name__}: {text}"
