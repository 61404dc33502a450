"""The measured timeline of a step, written where the configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from npu_plugins.pipeline.schedules import Span
from npu_plugins.pipeline.schedules.chrome_trace import chrome_trace


def write_trace(path: Path, spans: Sequence[Span]) -> None:
    """Write spans as a Chrome trace that begins at 0.

    Their times are seconds of the hosts' wall clocks, which agree between hosts as well as NTP keeps them.
    """
    origin = min((span.start for span in spans), default=0.0)
    moved = [span._replace(start=span.start - origin, end=span.end - origin) for span in spans]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(chrome_trace(moved), encoding="utf-8")
