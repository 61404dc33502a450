"""A schedule's timeline as text: one line per rank, one cell per action, as wide as the action is long."""

from __future__ import annotations

from collections.abc import Iterable

from npu_plugins.pipeline.schedules.schedule import Placement
from npu_plugins.pipeline.schedules.simulate import Span


def label(span: Span, placement: Placement) -> str:
    """Return the name of an action in a picture: kind, micro-batch, and a letter for the chunk if there are
    several.

    ``F3`` is the forward of micro-batch 3, ``F3b`` that of the rank's second chunk.
    """
    kind, stage, micro_batch, _ = span.action
    chunk = placement.chunk_of(stage)
    letter = "" if placement.chunks == 1 else chr(ord("a") + chunk) if chunk < 26 else f".{chunk}"
    return f"{kind.value}{micro_batch}{letter}"


def text_timeline(spans: Iterable[Span], placement: Placement) -> str:
    """Draw spans, simulated or measured, as the documents do: ``NPU0: [F0][F1]    [B0    ]``.

    The scale is the smallest at which every label fits into its cell; an action that takes no time is left
    out.
    """
    drawn = [(span, label(span, placement)) for span in spans if span.end > span.start]
    if not drawn:
        return ""
    first = min(span.start for span, _ in drawn)
    scale = max((len(name) + 2) / (span.end - span.start) for span, name in drawn)
    rows = dict.fromkeys(range(placement.ranks), "")
    for span, name in sorted(drawn, key=lambda each: each[0].start):
        begin, end = round((span.start - first) * scale), round((span.end - first) * scale)
        rows[span.rank] = f"{rows[span.rank]:<{begin}}[{name:<{end - begin - 2}}]"
    width = len(str(placement.ranks - 1))
    return "\n".join(f"NPU{rank:<{width}}: {row}" for rank, row in rows.items())
