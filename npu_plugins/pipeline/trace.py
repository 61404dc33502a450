"""The measured timeline of a step, as a Chrome trace (chrome://tracing, ui.perfetto.dev)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from npu_plugins.pipeline.schedules import Span


def write_chrome_trace(path: Path, spans: Sequence[Span]) -> None:
    """Write spans, with one row for each rank; the first one begins at 0.

    Their times are seconds of the hosts' wall clocks, which agree between hosts as well as NTP keeps them.
    """
    origin = min((float(span.start) for span in spans), default=0.0)
    events = [
        {
            "name": str(span.action),
            "cat": span.action.kind.name.lower(),
            "ph": "X",
            "ts": (float(span.start) - origin) * 1e6,
            "dur": float(span.end - span.start) * 1e6,
            "pid": 0,
            "tid": span.rank,
            "args": {"stage": span.action.stage, "micro_batch": span.action.micro_batch},
        }
        for span in spans
    ]
    rows = sorted({span.rank for span in spans})
    names = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": f"pipeline rank {row}"}}
        for row in rows
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": names + events, "displayTimeUnit": "ms"}), encoding="utf-8")
