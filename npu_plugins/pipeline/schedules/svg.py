"""A timeline as an SVG picture."""

from __future__ import annotations

from collections.abc import Iterable

from npu_plugins.pipeline.schedules.actions import Kind
from npu_plugins.pipeline.schedules.schedule import Placement
from npu_plugins.pipeline.schedules.simulate import Span
from npu_plugins.pipeline.schedules.timeline import label

COLOURS = {
    Kind.FORWARD: ("#4a7fc1", "#9dbfe6"),
    Kind.INPUT_GRADIENT: ("#d9822b", "#f2bd85"),
    Kind.WEIGHT_GRADIENT: ("#4c9f50", "#a5d3a7"),
    Kind.BACKWARD: ("#b8860b", "#e3c878"),
}
"""Of a rank's even and odd chunks."""
WORDS = {
    Kind.FORWARD: "F forward",
    Kind.INPUT_GRADIENT: "I input gradient",
    Kind.WEIGHT_GRADIENT: "W weight gradient",
    Kind.BACKWARD: "B backward",
}
ROW, BAR, MARGIN, LETTER = 28, 24, 56, 7.5
"""Heights of a row and of the bar in it, room for the rank's name, and width of a letter, in pixels."""


def svg_timeline(spans: Iterable[Span], placement: Placement, title: str, width: int | None = None) -> str:
    """Return an SVG document of spans, simulated or measured.

    Each action is a bar with its exact times in a tooltip; its label is shown where it fits.

    Args:
        spans: of all ranks.
        placement: of the schedule.
        title: plain text above the picture.
        width: of the bars' area in pixels; by default such that every label fits, within reason.
    """
    shown = [span for span in spans if span.end > span.start]
    first = min((span.start for span in shown), default=0)
    length = max((span.end for span in shown), default=1) - first
    if width is None:
        needed = (len(label(span, placement)) * LETTER * length / (span.end - span.start) for span in shown)
        width = min(max(600, round(max(map(float, needed), default=0))), 16000)
    top = 2 * ROW
    height = top + ROW * placement.ranks + ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 2 * MARGIN}" height="{height}" '
        'font-family="monospace" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="20" font-size="14">{_escape(title)}</text>',
    ]
    for rank in range(placement.ranks):
        parts.append(f'<text x="6" y="{top + ROW * rank + 16}">NPU{rank}</text>')
    for span in shown:
        left = MARGIN + float((span.start - first) / length) * width
        wide = float((span.end - span.start) / length) * width
        parts.append(_bar(span, placement, left, top + ROW * span.rank, wide))
    parts += _legend({span.action.kind for span in shown}, height - 10)
    return "\n".join([*parts, "</svg>", ""])


def _bar(span: Span, placement: Placement, left: float, top: int, wide: float) -> str:
    name = label(span, placement)
    chunk = placement.chunk_of(span.action.stage)
    tip = f"{span.action} from {float(span.start):g} to {float(span.end):g}"
    text = ""
    if len(name) * LETTER <= wide:
        text = f'<text x="{left + wide / 2:.2f}" y="{top + 16}" text-anchor="middle">{name}</text>'
    return (
        f'<g><title>{_escape(tip)}</title><rect x="{left:.2f}" y="{top}" width="{wide:.2f}" height="{BAR}" '
        f'fill="{COLOURS[span.action.kind][chunk % 2]}" stroke="white" stroke-width="0.5"/>{text}</g>'
    )


def _legend(kinds: set[Kind], baseline: int) -> list[str]:
    parts, left = [], MARGIN
    for kind, words in WORDS.items():
        if kind in kinds:
            parts.append(f'<circle cx="{left + 5}" cy="{baseline - 4}" r="5" fill="{COLOURS[kind][0]}"/>')
            parts.append(f'<text x="{left + 15}" y="{baseline}">{words}</text>')
            left += 160
    return parts


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
