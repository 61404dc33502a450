"""The exceptions npu_plugins raises, and how an uncaught one is shown."""

from __future__ import annotations

import sys
from types import TracebackType


class NpuPluginsError(RuntimeError):
    """Base of every error of this package: one sentence with the values seen and how to mend it."""


class SimulatorError(NpuPluginsError):
    """The simulated NPUs cannot be built, loaded or used as asked."""


class NpuUnavailableError(NpuPluginsError, ImportError):
    """torch_npu cannot be imported here.

    Also an ImportError, so that code which treats torch_npu as optional goes on without it.
    """


def sentence_of(error: BaseException | None) -> str | None:
    """Return the sentence of the first NpuPluginsError among `error` and its causes, or None."""
    while error is not None:
        if isinstance(error, NpuPluginsError):
            return str(error)
        error = error.__cause__
    return None


def show_as_one_sentence() -> None:
    """Let an uncaught NpuPluginsError end the process with its sentence instead of a traceback.

    torch wraps what a backend raises in a RuntimeError, and the frames in between are import machinery: forty
    lines in which the one that says what to do is hard to find. Every other error is shown as before.
    """
    previous = sys.excepthook
    if getattr(previous, "shows_npu_plugins_sentence", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sentence = sentence_of(error)
        if sentence is None:
            previous(kind, error, trace)
        else:
            print(f"npu-plugins: error: {sentence}", file=sys.stderr)

    setattr(hook, "shows_npu_plugins_sentence", True)  # noqa: B010 (a function has no such declared attribute)
    sys.excepthook = hook
