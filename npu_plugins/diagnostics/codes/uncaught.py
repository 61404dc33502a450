"""An exception that ends a process, with what the error codes in it mean."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

_WIDTH = 110


@dataclass(frozen=True)
class ExplainingHook:
    """A sys.excepthook that shows an exception as before, and then explains its codes."""

    previous: Callable[[type[BaseException], BaseException, TracebackType | None], object]

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Show `error`; what explains it is read only now."""
        from npu_plugins.diagnostics.codes.explain import explain

        self.previous(kind, error, trace)
        for told in explain(f"{error}\n{error.__cause__ or ''}"):
            paragraph = textwrap.fill(
                f"npu-plugins: {told}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False
            )
            print(paragraph, file=sys.stderr)


def explain_uncaught() -> None:
    """Let an uncaught exception be followed by what the codes in its message mean; once for a process."""
    if not isinstance(sys.excepthook, ExplainingHook):
        sys.excepthook = ExplainingHook(sys.excepthook)
