"""Of the events of all ranks, the one that made the first bad value is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.diagnostics.nonfinite.judge import (
    BETWEEN,
    INPUT,
    OUTPUT,
    OUTPUT_GRADIENT,
    PARAMETER,
    PARAMETER_GRADIENT,
    Event,
    Finding,
    RankEvents,
    first_bad,
    is_alarm,
)


def event(kind: str, name: str, order: int) -> Event:
    """A tensor with one nan."""
    return Event(kind, name, order, 1, 0, 6)


def rank(number: int, *events: Event, stage: int = 0, scaled: bool = False) -> RankEvents:
    """What a rank saw."""
    return RankEvents(number, stage, events, scaled)


def found_in(*ranks: RankEvents) -> Finding:
    """What is found, of a step that is not well."""
    found = first_bad(ranks)
    assert found is not None
    return found


END = event(PARAMETER_GRADIENT, "w", 99)


def test_nothing_but_masks_is_well() -> None:
    assert first_bad([rank(0, event(OUTPUT, "mask", 3)), rank(1)]) is None


def test_gradients_that_overflow_under_a_scaler_are_well() -> None:
    ranks = [rank(0, event(OUTPUT_GRADIENT, "b", 9), END, scaled=True), rank(1, scaled=True)]
    assert not is_alarm(ranks)
    assert is_alarm([replace(each, scaled=False) for each in ranks])


def test_a_forward_that_overflows_under_a_scaler_is_not() -> None:
    found = first_bad([rank(0, event(OUTPUT, "a", 2), END, scaled=True)])
    assert found is not None
    assert found.event.name == "a"


def test_what_is_always_there_is_no_cause() -> None:
    mask, cause = event(OUTPUT, "mask", 1), event(OUTPUT, "layer", 7)
    ranks = [replace(rank(0, mask, cause, END), usual=frozenset({(OUTPUT, "mask")}))]
    found = first_bad(ranks, step=4)
    assert found is not None
    assert str(found).startswith(
        "step 4: the first value that is not finite came up on rank 0 in the forward of layer, whose inputs"
    )


def test_a_mask_counts_only_where_a_module_made_more_of_it() -> None:
    mask = Event(OUTPUT, "mask", 1, 0, 3, 6, ("attention",), like_mask=True)
    elsewhere = rank(0, mask, event(OUTPUT, "mlp", 7), END)
    assert found_in(elsewhere).event.name == "mlp"
    assert found_in(rank(0, mask, event(OUTPUT, "attention", 3), END)).event.name == "mask"


def test_a_parameter_goes_before_all() -> None:
    found = first_bad([rank(0, event(OUTPUT, "a", 1), END), rank(1, event(PARAMETER, "w", 5), END)])
    assert found is not None
    assert (found.ranks, found.event.kind) == ((1,), PARAMETER)


def test_the_forward_goes_from_the_first_stage_and_the_backward_from_the_last() -> None:
    forward = [rank(0, event(OUTPUT, "a", 8), END), rank(1, event(INPUT, "b", 1), END, stage=1)]
    assert found_in(*forward).ranks == (0,)
    backward = [
        rank(0, event(OUTPUT_GRADIENT, "a", 1), END),
        rank(1, event(OUTPUT_GRADIENT, "b", 8), stage=1),
    ]
    assert found_in(*backward).ranks == (1,)


@given(st.integers(2, 6), st.integers(0, 30), st.data())
def test_the_rank_that_saw_it_earlier_than_the_others_is_named(
    world: int, order: int, data: st.DataObject
) -> None:
    """Tensor-parallel ranks run one program; the sum of all spreads the value to the later places."""
    culprit = data.draw(st.integers(0, world - 1))
    ranks = [
        rank(number, event(OUTPUT, "x", order + (number != culprit) * data.draw(st.integers(1, 9))), END)
        for number in range(world)
    ]
    assert found_in(*ranks).ranks == (culprit,)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (PARAMETER, "in the parameter x: 1 nan and 0 infinite of 6 values; the optimizer's step before"),
        (INPUT, "in the input of x: 1 nan"),
        (BETWEEN, "the code before that module"),
        (OUTPUT_GRADIENT, "the gradient of the output of x, that is in what uses it, such as the loss"),
    ],
)
def test_each_kind_has_its_words(kind: str, words: str) -> None:
    assert words in str(first_bad([rank(0, event(kind, "x", 1), END)]))
