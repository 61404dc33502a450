"""Actions and steps: their string form, and what is no such form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.pipeline.schedules import Action, Exchange, Kind, ScheduleError, format_steps, parse_steps
from npu_plugins.pipeline.schedules.actions import COMPUTE

numbers = st.integers(0, 4096)
computes = st.builds(Action, st.sampled_from(sorted(COMPUTE)), numbers, numbers, st.none())
transfers = st.builds(Action, st.sampled_from(sorted(set(Kind) - COMPUTE)), numbers, numbers, numbers)
exchanges = st.builds(Exchange, st.lists(transfers, min_size=1, max_size=4).map(tuple))


@given(computes | transfers)
def test_an_action_is_what_its_string_says(action: Action) -> None:
    assert Action.parse(str(action)) == action


@given(st.lists(computes | exchanges).map(tuple))
def test_a_list_of_steps_is_what_its_line_says(steps: tuple[Action | Exchange, ...]) -> None:
    assert parse_steps(format_steps(steps)) == steps


def test_the_string_form() -> None:
    assert str(Action(Kind.FORWARD, stage=2, micro_batch=5)) == "F5@2"
    assert str(Action(Kind.SEND_ACTIVATION, stage=2, micro_batch=5, peer=3)) == "SA5@2>3"
    gradient = Action(Kind.RECEIVE_GRADIENT, stage=2, micro_batch=1, peer=3)
    assert str(Exchange((Action.parse("SA5@2>3"), gradient))) == "[SA5@2>3 RG1@2<3]"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("X5@2", "'X5@2' is no pipeline action"),
        ("F5", "'F5' is no pipeline action"),
        ("F٥@2", "is no pipeline action"),
        ("F5@2>1", "F takes nothing behind its stage"),
        ("SA5@2", "SA takes '>' and the other rank"),
        ("SA5@2<1", "SA takes '>' and the other rank"),
        ("RG5@2>1", "RG takes '<' and the other rank"),
    ],
)
def test_what_is_no_action_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        Action.parse(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("F0@0 SA0@0>1", r"put it in brackets: \[SA0@0>1\]"),
        ("F0@0 []", "is no exchange"),
        ("[F0@0]", "is no exchange"),
        ("[SA0@0>1", "is no pipeline action"),
        ("F0@0 SA0@0>1]", "is no pipeline action"),
    ],
)
def test_what_is_no_list_of_steps_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        parse_steps(text)
