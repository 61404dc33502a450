"""A timeline in the trace-event format that chrome://tracing and ui.perfetto.dev open."""

from __future__ import annotations

import json
from collections.abc import Iterable

from npu_plugins.pipeline.errors import ScheduleError
from npu_plugins.pipeline.schedules.actions import Action
from npu_plugins.pipeline.schedules.simulate import Span


def chrome_trace(spans: Iterable[Span], seconds: float = 1.0) -> str:
    """Return the JSON text of spans, simulated or measured: one row per rank.

    Args:
        spans: of all ranks, or of some.
        seconds: one unit of the spans' time; the format counts in microseconds.
    """
    spans = list(spans)
    names = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": {"name": f"pipeline rank {rank}"}}
        for rank in sorted({span.rank for span in spans})
    ]
    events = [
        {
            "name": str(span.action),
            "cat": span.action.kind.name.lower(),
            "ph": "X",
            "ts": float(span.start) * seconds * 1e6,
            "dur": float(span.end - span.start) * seconds * 1e6,
            "pid": 0,
            "tid": span.rank,
            "args": {"stage": span.action.stage, "micro_batch": span.action.micro_batch},
        }
        for span in spans
    ]
    return json.dumps({"traceEvents": [*names, *events], "displayTimeUnit": "ms"})


def parse_chrome_trace(text: str) -> list[Span]:
    """Return the spans that `chrome_trace` wrote as ``text``, in seconds.

    Raises:
        ScheduleError: it is no trace of a pipeline.
    """
    try:
        events = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
        return [
            Span(
                event["tid"],
                Action.parse(event["name"]),
                event["ts"] / 1e6,
                (event["ts"] + event["dur"]) / 1e6,
            )
            for event in events
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ScheduleError(
            f"this is no trace of a pipeline ({type(error).__name__}: {error}); give a file that "
            "pipeline.trace_file or `npu-plugins pipeline show --trace` has written"
        ) from error
