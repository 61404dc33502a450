"""Pictures of schedules: text as the documents draw it, SVG and Chrome trace."""

from __future__ import annotations

import json
from fractions import Fraction
from xml.etree import ElementTree

import pytest
from hypothesis import given

from npu_plugins.pipeline.schedules import (
    Action,
    Costs,
    Schedule,
    ScheduleError,
    Span,
    build_schedule,
    loop,
    simulate,
)
from npu_plugins.pipeline.schedules.chrome_trace import chrome_trace, parse_chrome_trace
from npu_plugins.pipeline.schedules.svg import svg_timeline
from npu_plugins.pipeline.schedules.timeline import text_timeline
from tests.pipeline.schedules.strategies import costs, schedules

SVG = "{http://www.w3.org/2000/svg}"


def drawn(name: str, ranks: int, micro_batches: int, times: Costs) -> list[str]:
    schedule = build_schedule(name, ranks, micro_batches)
    return text_timeline(simulate(schedule, times).spans(), schedule.placement).splitlines()


def test_gpipe_as_the_documents_draw_it() -> None:
    """Forwards and backwards as wide as each other, as there."""
    assert drawn("gpipe", 3, 4, Costs(2, 1, 1)) == [
        "NPU0: [F0][F1][F2][F3]                [B3][B2][B1][B0]",
        "NPU1:     [F0][F1][F2][F3]        [B3][B2][B1][B0]",
        "NPU2:         [F0][F1][F2][F3][B3][B2][B1][B0]",
    ]


def test_a_cell_is_as_wide_as_its_action_is_long() -> None:
    assert drawn("1f1b", 2, 2, Costs()) == [
        "NPU0: [F0][F1]        [B0    ]    [B1    ]",
        "NPU1:     [F0][B0    ][F1][B1    ]",
    ]


def test_chunks_are_told_apart_by_letters() -> None:
    assert drawn("zb-v", 2, 1, Costs(1, 1, 1)) == [
        "NPU0: [F0a]          [F0b][I0b][W0b]          [I0a][W0a]",
        "NPU1:      [F0a][F0b]          [I0b][W0b][I0a][W0a]",
    ]


@given(schedules(), costs)
def test_every_action_is_drawn_once_in_its_ranks_row_without_touching_another(
    schedule: Schedule, times: Costs
) -> None:
    simulation = simulate(schedule, times)
    rows = text_timeline(simulation.spans(), schedule.placement).splitlines()
    assert len(rows) == schedule.ranks
    for rank, row in enumerate(rows):
        head, cells = row.split(": ", 1)
        assert head == f"NPU{rank}"
        words = [cell.strip("[] ") for cell in cells.replace("]", "] ").split("[") if cell.strip()]
        assert [word[:2] for word in words] == [
            str(action).split("@")[0][:2] for action in schedule.compute(rank)
        ]
        assert cells.count("[") == cells.count("]") == len(schedule.compute(rank))


def test_measured_spans_are_drawn_from_the_first_one_on() -> None:
    spans = [Span(0, Action.parse("F0@0"), 100.0, 100.5), Span(1, Action.parse("F0@1"), 100.5, 101.5)]
    assert text_timeline(spans, loop(2)) == "NPU0: [F0]\nNPU1:     [F0    ]"


def test_nothing_to_draw_is_an_empty_picture() -> None:
    assert text_timeline([], loop(2)) == ""
    assert len(ElementTree.fromstring(svg_timeline([], loop(2), "none")).findall(f"{SVG}g")) == 0


@given(schedules(), costs)
def test_the_svg_holds_a_bar_for_every_action_in_proportion(schedule: Schedule, times: Costs) -> None:
    simulation = simulate(schedule, times)
    spans = simulation.spans()
    root = ElementTree.fromstring(svg_timeline(spans, schedule.placement, "a < b & c", width=1000))
    assert root.find(f"{SVG}text").text == "a < b & c"
    bars = [(group.find(f"{SVG}title").text, group.find(f"{SVG}rect")) for group in root.findall(f"{SVG}g")]
    assert [tip.split()[0] for tip, _ in bars] == [str(span.action) for span in spans]
    left = min(float(bar.get("x")) for _, bar in bars)
    rows: dict[int, set[str]] = {}
    for span, (_, bar) in zip(spans, bars, strict=True):
        assert abs(float(bar.get("x")) - left - float(span.start / simulation.time) * 1000) < 0.02
        assert abs(float(bar.get("width")) - float((span.end - span.start) / simulation.time) * 1000) < 0.02
        rows.setdefault(span.rank, set()).add(bar.get("y"))
    assert all(len(heights) == 1 for heights in rows.values())
    assert len(set.union(*rows.values())) == schedule.ranks


def test_the_chrome_trace_has_one_row_for_each_rank_and_times_in_microseconds() -> None:
    schedule = build_schedule("zb-h1", 2, 2)
    spans = simulate(schedule, Costs(Fraction(1, 2))).spans()
    trace = json.loads(chrome_trace(spans, seconds=1e-3))
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"]
    assert names == ["pipeline rank 0", "pipeline rank 1"]
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(spans)
    assert events[0] == {
        "name": "F0@0",
        "cat": "forward",
        "ph": "X",
        "ts": 0.0,
        "dur": 500.0,
        "pid": 0,
        "tid": 0,
        "args": {"stage": 0, "micro_batch": 0},
    }
    assert max(event["ts"] + event["dur"] for event in events) == 1e3 * max(span.end for span in spans)


def test_a_chrome_trace_reads_back() -> None:
    spans = simulate(build_schedule("zb-v", 2, 4), Costs(0.5, 0.25, 0.25)).spans()
    assert parse_chrome_trace(chrome_trace(spans)) == spans


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"traceEvents": [{"ph": "X", "name": "F0@0"}]}'])
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="no trace of a pipeline"):
        parse_chrome_trace(text)
