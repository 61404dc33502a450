"""The flags of runs, as TrainingArguments hold them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ds_configs.resolve import TrainingRun


def run_flags(world_size: int, precision: str = "fp32", **flags: Any) -> dict[str, Any]:
    """All flags of a run, those not given at their defaults."""
    if precision in ("fp16", "bf16"):
        flags[precision] = True
    return asdict(TrainingRun(world_size, **flags))
