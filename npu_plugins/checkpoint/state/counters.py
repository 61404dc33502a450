"""What an engine of DeepSpeed's counts, and the state of its layers' seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COUNTERS = ("global_steps", "global_samples", "skipped_steps")


def counters_of(engine: Any) -> dict[str, int]:
    """Return the counts of an engine; {} for None."""
    if engine is None:
        return {}
    found = {name: int(getattr(engine, name)) for name in COUNTERS}
    if hasattr(engine.module, "calls"):
        found["calls"] = int(engine.module.calls)  # the pipeline's layers seed themselves by it
    return found


def restore_counters(engine: Any, saved: Mapping[str, Any]) -> None:
    """Go on counting; what was saved without DeepSpeed leaves the engine's counts as they are."""
    if engine is None:
        return
    for name in COUNTERS:
        if name in saved:
            setattr(engine, name, int(saved[name]))
    if hasattr(engine.module, "calls"):
        engine.module.calls = int(saved.get("calls", 0))
