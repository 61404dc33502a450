"""Hardware presets: every figure has a source, and figures agree with each other."""

from __future__ import annotations

from dataclasses import fields

import pytest

from ds_configs.errors import DsConfigError
from ds_configs.hardware import Hardware, hardware_figures, hardware_names, load_hardware

CUBE_FLOPS_PER_CYCLE = 2 * 16**3  # a DaVinci core multiplies two 16 x 16 matrices in a cycle


def test_the_cards_of_the_issue_are_there() -> None:
    assert hardware_names() == [
        "a100-40gb",
        "a100-80gb",
        "ascend-910b1",
        "ascend-910b2",
        "ascend-910b3",
        "ascend-910b4",
        "ascend-910c",
    ]


@pytest.mark.parametrize("name", hardware_names())
def test_every_figure_has_a_unit_and_a_source(name: str) -> None:
    numbers = {field.name for field in fields(Hardware)} - {"name", "title", "accelerator"}
    figures = hardware_figures(name)
    assert set(figures) == numbers
    for figure in figures.values():
        assert figure.unit
        assert len(figure.source) > 10


@pytest.mark.parametrize(
    ("name", "cores", "clock"),
    [("ascend-910b2", 24, 1.8e9), ("ascend-910b3", 20, 1.8e9), ("ascend-910b4", 20, 1.5e9)],
)
def test_peaks_are_cores_times_clock(name: str, cores: int, clock: float) -> None:
    assert load_hardware(name).peak_flops == pytest.approx(cores * clock * CUBE_FLOPS_PER_CYCLE)


def test_a_full_mesh_is_as_fast_as_the_links_to_the_group() -> None:
    """Atlas A2: seven HCCS links of 28 GB/s a direction; a group of four uses three of them."""
    card = load_hardware("ascend-910b2")
    assert [card.fast_bandwidth(ranks) for ranks in (2, 4, 8)] == [28e9, 84e9, 196e9]
    assert card.network_bandwidth == 200e9 / 8


def test_behind_a_switch_the_group_does_not_matter() -> None:
    card = load_hardware("a100-80gb")
    assert {card.fast_bandwidth(ranks) for ranks in (2, 4, 8)} == {300e9}


def test_own_link_speeds_keep_the_topology() -> None:
    card = load_hardware("ascend-910b2").with_figures(link_bandwidth=98e9, network_bandwidth=None)
    assert (card.link_bandwidth, card.peer_bandwidth, card.network_bandwidth) == (98e9, 14e9, 25e9)


def test_an_unknown_card_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DsConfigError, match="'tpu'.*ascend-910b1"):
        load_hardware("tpu")


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({"hbm_bytes": 0}, "hbm_bytes .* is 0"),
        ({"network_bandwidth": -1.0}, "network_bandwidth .* is -1.0"),
        ({"link_bandwidth": float("nan")}, "link_bandwidth .* is nan"),
        ({"peer_bandwidth": 400e9}, "one peer cannot be reached faster"),
    ],
)
def test_impossible_figures_are_refused(figures: dict, reason: str) -> None:
    with pytest.raises(DsConfigError, match=reason):
        load_hardware("ascend-910b2").with_figures(**figures)
