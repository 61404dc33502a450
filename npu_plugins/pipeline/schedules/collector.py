"""Python's cycle collector, which stands still while a schedule is made."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def without_collector(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Let `function` run without the cycle collector, which is as it was afterwards.

    A schedule of 64 ranks and 512 micro-batches is a million small tuples, none of them in a cycle. The
    collector looks through all of them again and again while they become more, which takes up to two thirds
    of the time. What has become unreachable meanwhile is found by its next run.
    """

    @functools.wraps(function)
    def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return run
