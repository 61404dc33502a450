"""What the simulator reads from the environment, and the sentence for each value that makes no sense."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.errors import SimulatorError
from npu_plugins.simulator.settings import (
    DEFAULT_HBM_BYTES,
    SimulatorSettings,
    SlowLink,
    cache_root,
    format_bytes,
    parse_bytes,
    settings_from,
    simulator_requested,
)


def test_defaults() -> None:
    settings = settings_from({"NPU_SIM": "2"})
    assert settings == SimulatorSettings(npus=2, hbm_bytes=64 << 30, local_ranks=0, visible=None)
    assert settings.visible_npus == 2
    assert settings.hbm_bytes == DEFAULT_HBM_BYTES


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"NPU_SIM": "abc"}, "NPU_SIM='abc' is not a number"),
        ({"NPU_SIM": "-1"}, "NPU_SIM='-1' is not a number"),
        ({"NPU_SIM": "1.5"}, "NPU_SIM='1.5' is not a number"),
        ({"NPU_SIM": "0"}, "NPU_SIM=0 is out of range"),
        ({"NPU_SIM": "65"}, "NPU_SIM=65 is out of range"),
        ({"NPU_SIM_HBM": "lots"}, "NPU_SIM_HBM='lots' is not a size"),
        ({"NPU_SIM_HBM": "4 pints"}, "NPU_SIM_HBM='4 pints' is not a size"),
        ({"NPU_SIM_HBM": "1MiB"}, "NPU_SIM_HBM asks for 1048576 bytes"),
        ({"NPU_SIM_HBM": "5TiB"}, "set it between 64 MiB and 4 TiB"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,2"}, "names NPU 2, but NPU_SIM=2 simulates 0 to 1"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "1,1"}, "ASCEND_RT_VISIBLE_DEVICES=1,1 names an NPU twice"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "npu0"}, "'npu0' is no list of NPU numbers"),
        ({"NPU_SIM_SLOW_LINK": "0-1"}, "NPU_SIM_SLOW_LINK='0-1' is no list of slow links"),
        ({"NPU_SIM_SLOW_LINK": "0-1:50,"}, "NPU_SIM_SLOW_LINK='0-1:50,' is no list of slow links"),
        ({"NPU_SIM_SLOW_LINK": "0-1:0"}, "with at least 0.001 MB/s"),
        ({"NPU_SIM_SLOW_LINK": "1-1:50"}, "joins NPU 1 and NPU 1: name two different ones of 0 to 1"),
        ({"NPU_SIM_SLOW_LINK": "0-2:50"}, "which NPU_SIM=2 simulates"),
        ({"LOCAL_RANK": "2"}, "at least 3 ranks on this machine, but NPU_SIM=2"),
        ({"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "0"}, "at least 4 ranks on this machine"),
        ({"LOCAL_SIZE": "4", "ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3"}, "at least 4 ranks on this machine"),
    ],
)
def test_what_makes_no_sense_gets_one_sentence(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(SimulatorError) as caught:
        settings_from({"NPU_SIM": "2", **environ})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_slow_links_are_listed() -> None:
    settings = settings_from({"NPU_SIM": "4", "NPU_SIM_SLOW_LINK": "0-1:50,3-2:0.5"})
    assert settings.slow_links == (SlowLink((0, 1), 50.0), SlowLink((3, 2), 0.5))
    assert settings_from({"NPU_SIM": "4", "NPU_SIM_SLOW_LINK": ""}).slow_links == ()


@pytest.mark.parametrize(("text", "visible"), [("1", (1,)), ("1, 0", (1, 0)), ("", ())])
def test_visible_devices_keep_their_order(text: str, visible: tuple[int, ...]) -> None:
    settings = settings_from({"NPU_SIM": "2", "ASCEND_RT_VISIBLE_DEVICES": text})
    assert settings.visible == visible
    assert settings.visible_npus == len(visible)


def test_one_visible_npu_a_rank_is_fine() -> None:
    environ = {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1", "ASCEND_RT_VISIBLE_DEVICES": "1"}
    assert settings_from({"NPU_SIM": "2", **environ}).visible_npus == 1


@pytest.mark.parametrize(
    ("value", "requested"), [(None, False), ("", False), (" ", False), ("0", True), ("2", True)]
)
def test_empty_counts_as_unset(value: str | None, requested: bool) -> None:
    assert simulator_requested({} if value is None else {"NPU_SIM": value}) is requested


@given(st.integers(0, 1 << 20), st.sampled_from([("", 0), ("K", 10), ("MiB", 20), ("gb", 30), ("TIB", 40)]))
def test_sizes_are_powers_of_1024(count: int, unit: tuple[str, int]) -> None:
    assert parse_bytes(f"{count}{unit[0]}") == count << unit[1]
    assert parse_bytes(f" {count} {unit[0]} ") == count << unit[1]


def test_a_fraction_of_a_unit() -> None:
    assert parse_bytes("1.5GiB") == 3 << 29


@given(st.integers(1, 1023), st.sampled_from([0, 10, 20, 30, 40]))
def test_written_sizes_read_back(count: int, shift: int) -> None:
    assert parse_bytes(format_bytes(count << shift)) == count << shift


def test_where_the_cache_is(tmp_path: Path) -> None:
    assert cache_root({"NPU_SIM_CACHE": str(tmp_path), "XDG_CACHE_HOME": "/elsewhere"}) == tmp_path
    assert cache_root({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "npu-plugins" / "simulator"
    assert cache_root({}) == Path.home() / ".cache" / "npu-plugins" / "simulator"
    assert cache_root({"NPU_SIM_CACHE": "relative"}).is_absolute()
