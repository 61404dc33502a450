"""Models of a given number of parameters: exact totals, and layouts near Narayanan 2021's table 1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_configs.errors import DsConfigError
from ds_configs.models import ModelShape
from ds_configs.models.by_size import TABLE_1, parse_size


@given(st.integers(min_value=8_000_000, max_value=2_000_000_000_000))
def test_total_is_exact(parameters: int) -> None:
    assert ModelShape.from_parameters(str(parameters)).parameters() == parameters


@pytest.mark.parametrize(("billions", "layers", "hidden"), TABLE_1)
def test_layout_is_near_the_paper(billions: float, layers: int, hidden: int) -> None:
    shape = ModelShape.from_parameters(f"{billions}B")
    assert shape.layers == pytest.approx(layers, rel=0.05)
    assert shape.hidden == pytest.approx(hidden, rel=0.05)
    assert shape.ffn == pytest.approx(4 * hidden, rel=0.1)


def test_the_zero_papers_model() -> None:
    shape = ModelShape.from_parameters("7.5B")
    assert (shape.layers, shape.hidden, shape.parameters()) == (36, 4096, 7_500_000_000)


@pytest.mark.parametrize(
    ("text", "number"),
    [("7.5B", 7_500_000_000), ("350m", 350_000_000), ("1T", 10**12), ("12345678", 12345678)],
)
def test_ways_to_write_a_size(text: str, number: int) -> None:
    assert parse_size(text) == number


@pytest.mark.parametrize("text", ["", "B", "7,5B", "-1B", "0.5", "1e9", "7.5G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(DsConfigError, match="no .*number of parameters"):
        ModelShape.from_parameters(text)


def test_too_few_parameters_are_refused() -> None:
    with pytest.raises(DsConfigError, match="the least is"):
        ModelShape.from_parameters("1M")
