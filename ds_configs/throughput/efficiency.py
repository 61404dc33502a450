"""Efficiency: what software reaches of a card's nominal figures, one set for each kind of accelerator."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from ds_configs.errors import DsConfigError

EFFICIENCY_FILE = Path(__file__).parent / "efficiency.json"


@dataclass(frozen=True)
class Efficiency:
    """Fractions of the nominal figures; ``efficiency.json`` says where each comes from.

    Raises:
        DsConfigError: a constant is not a number, or a fraction lies outside 0..1.
    """

    matmul: float
    """Of ``peak_flops``, in a matmul without its memory traffic, which is counted beside it."""
    attention: float
    """Of ``peak_flops``, in flash attention, on the operations of the causal half alone."""
    hbm: float
    """Of ``hbm_bandwidth``."""
    link: float
    """Of the fast links' bandwidth, in a collective."""
    network: float
    """Of ``network_bandwidth``, in a collective."""
    fused_tp_overlap: float
    """Of the tensor-parallel communication, the part that fused operators (MC2) hide."""
    kernel_seconds: float
    """Seconds between two kernels."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            most = math.inf if field.name == "kernel_seconds" else 1.0
            least_allowed = field.name in ("fused_tp_overlap", "kernel_seconds")
            if (
                not isinstance(value, int | float)
                or not 0 <= value <= most
                or (value == 0 and not least_allowed)
            ):
                raise DsConfigError(
                    f"efficiency {field.name} is {value!r}; give a fraction above 0, at most 1"
                )


@lru_cache(maxsize=8)
def load_efficiency(accelerator: str) -> Efficiency:
    """Return the constants of ``accelerator``, ``npu`` or ``gpu``.

    Raises:
        DsConfigError: there are none for it.
    """
    known = json.loads(EFFICIENCY_FILE.read_text(encoding="utf-8"))
    if accelerator not in known:
        raise DsConfigError(
            f"no efficiencies are known for {accelerator!r}; choose one of {', '.join(known)}"
        )
    return Efficiency(**{name: figure["value"] for name, figure in known[accelerator].items()})
