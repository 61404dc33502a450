"""A rank's dump goes to the others as text, and comes back as it was."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.diagnostics.hang.dump import REASONS, STATES, Call, Frame, Group, RankDump

FRAMES = st.lists(st.builds(Frame, st.text(), st.integers(0, 9999), st.text()), max_size=3).map(tuple)
SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=2).map(tuple)
DTYPES = st.lists(st.sampled_from(("Float", "BFloat16")), max_size=2).map(tuple)
CALLS = st.builds(
    Call,
    group=st.text(),
    sequence=st.integers(1),
    p2p=st.booleans(),
    op=st.text(),
    input_shapes=SHAPES,
    input_dtypes=DTYPES,
    output_shapes=SHAPES,
    output_dtypes=DTYPES,
    state=st.sampled_from(STATES),
    created=st.floats(0, 2e9),
    stack=FRAMES,
    peer=st.none() | st.integers(0, 7),
)
GROUPS = st.builds(Group, st.text(), st.text(), st.lists(st.integers(0, 7)).map(tuple))
DUMPS = st.builds(
    RankDump,
    rank=st.integers(0, 7),
    world_size=st.just(8),
    host=st.text(),
    pid=st.integers(1),
    reason=st.sampled_from(REASONS),
    taken=st.floats(0, 2e9),
    error=st.text(),
    error_stack=FRAMES,
    stacks=st.dictionaries(st.text(), FRAMES, max_size=2),
    groups=st.lists(GROUPS, max_size=2).map(tuple),
    calls=st.lists(CALLS, max_size=3).map(tuple),
    memory=st.dictionaries(st.text(), st.integers(0), max_size=2),
)
ONE = RankDump(rank=1, world_size=2, host="node-1", pid=17, reason="timeout", taken=1.0)


@given(DUMPS)
def test_a_dump_survives_the_journey(dump: RankDump) -> None:
    assert RankDump.from_json(dump.to_json()) == dump


@pytest.mark.parametrize(
    "text",
    [
        "",
        ONE.to_json()[:-5],
        "[]",
        "{}",
        json.dumps(json.loads(ONE.to_json()) | {"calls": [{"group": "0"}]}),
        json.dumps(json.loads(ONE.to_json()) | {"mood": "bad"}),
    ],
)
def test_what_is_no_dump_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(DiagnosticsError, match="This is no dump of a rank"):
        RankDump.from_json(text)


def test_a_reason_that_no_report_knows_is_refused() -> None:
    with pytest.raises(DiagnosticsError, match="'boredom'.*timeout, exception"):
        replace(ONE, reason="boredom")
