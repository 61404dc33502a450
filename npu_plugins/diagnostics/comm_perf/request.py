"""What is asked of a run, checked before any rank starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from npu_plugins.diagnostics.comm_perf.collectives import COLLECTIVES, Collective, collective_named
from npu_plugins.diagnostics.comm_perf.measure import Repeats
from npu_plugins.diagnostics.comm_perf.values import REDUCTIONS
from npu_plugins.diagnostics.errors import DiagnosticsError

# nccl-tests' names, and torch's
DTYPES = {
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "half": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
    "bfloat16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
}
_OTHER_NAMES = {
    "float16": "half",
    "fp16": "half",
    "float32": "float",
    "fp32": "float",
    "float64": "double",
    "fp64": "double",
    "bf16": "bfloat16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
AVERAGES = {0: "of rank 0", 1: "mean of ranks", 2: "least of ranks", 3: "most of ranks"}


@dataclass(frozen=True)
class Request:
    """What to measure."""

    sizes: Sequence[int]
    """Bytes, ascending."""
    collectives: Sequence[Collective] = (COLLECTIVES[0],)
    dtypes: Sequence[str] = ("float",)
    """Of `DTYPES`."""
    reductions: Sequence[str] = ("sum",)
    root: int | None = 0
    """In each group; None: each rank in turn."""
    repeats: Repeats = field(default_factory=Repeats)
    average: int = 1
    """Which of a group's ranks tells the time: a key of `AVERAGES`."""
    strict: bool = True
    """Whether what the backend does not do ends the run; otherwise it is told and left out."""


def collectives_named(text: str) -> list[Collective]:
    """Return the collectives of a list with commas, or all."""
    return list(COLLECTIVES) if text == "all" else [collective_named(name) for name in text.split(",")]


def dtypes_named(text: str) -> list[str]:
    """Return the dtypes that `text` names, as keys of `DTYPES`; ``all``: every one.

    Raises:
        DiagnosticsError: there is no such dtype.
    """
    if text == "all":
        return list(DTYPES)
    name = _OTHER_NAMES.get(text, text)
    if name not in DTYPES:
        raise DiagnosticsError(f"There is no dtype {text!r} (-d); take one of {', '.join(DTYPES)} or all")
    return [name]


def reductions_named(text: str) -> list[str]:
    """Return the reductions that `text` names; ``all``: every one.

    Raises:
        DiagnosticsError: there is no such reduction.
    """
    if text == "all":
        return list(REDUCTIONS)
    if text not in REDUCTIONS:
        collective = "; the collective is --op" if text in {each.name for each in COLLECTIVES} else ""
        raise DiagnosticsError(
            f"There is no reduction {text!r} (-o); take one of {', '.join(REDUCTIONS)} or all{collective}"
        )
    return [text]
