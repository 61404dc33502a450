"""Bucket sizes for measured links: the least of what reduction costs, the smallest that gathers need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_configs.buckets import HCCL_BUFFER_BYTES, UNIT, bucket_sizes, gather_bytes, reduce_bytes
from ds_configs.cli import main
from ds_configs.errors import DsConfigError
from ds_configs.measured_links import AxisLinks, LinkSpeed, MeasuredLinks

speeds = st.builds(
    LinkSpeed,
    latency=st.floats(1e-6, 1e-2),
    bandwidth=st.floats(1e6, 1e12),
    largest=st.just(2**26),
    error=st.just(0.0),
)


def links(latency: float = 1e-4, bandwidth: float = 1e10, axis: str = "dp", **more: Any) -> MeasuredLinks:
    speed = LinkSpeed(latency, bandwidth, 2**26, 0.1)
    names = ("all_reduce", "all_gather", "reduce_scatter")
    return MeasuredLinks({axis: AxisLinks(2, dict.fromkeys(names, speed))}, **more)


@given(speeds, st.floats(1e6, 1e12))
def test_no_other_bucket_reduces_all_gradients_sooner(speed: LinkSpeed, gradients: float) -> None:
    """Each bucket pays the latency, and the last one's transfer hides behind nothing."""

    def seconds(bucket: Any) -> Any:
        return gradients / bucket * speed.latency + gradients / speed.bandwidth + bucket / speed.bandwidth

    chosen = reduce_bytes(speed, gradients)
    others = np.geomspace(gradients / 1e6, gradients, 2001)
    assert chosen <= gradients
    assert seconds(chosen) <= seconds(others).min() * (1 + 1e-9)


@given(speeds)
def test_a_gather_reaches_the_part_of_the_bandwidth_and_no_smaller_one_does(speed: LinkSpeed) -> None:
    size = gather_bytes(speed, reached=0.95)
    assert size / speed.seconds(size) == pytest.approx(0.95 * speed.bandwidth)
    assert size * 0.9 / speed.seconds(size * 0.9) < 0.95 * speed.bandwidth


def test_sizes_are_elements_for_the_stage_in_the_dtype() -> None:
    # sqrt(1e-4 s x 1e10 B/s x 2e9 B) = 44.7 MB and 1e-4 x 1e10 x 19 = 19 MB
    assert bucket_sizes(links(), stage=2, parameters=10**9, element_bytes=2) == {
        "reduce_bucket_size": 44721359 // 2 // UNIT * UNIT,
        "allgather_bucket_size": 19000000 // 2 // UNIT * UNIT,
    }
    assert list(bucket_sizes(links(), stage=3, parameters=10**9, element_bytes=4)) == [
        "reduce_bucket_size",
        "stage3_prefetch_bucket_size",
    ]


def test_hccls_buffer_and_the_memory_bound_them() -> None:
    slow = links(latency=0.1)
    alone = bucket_sizes(slow, stage=2, parameters=10**10, element_bytes=2)
    assert set(alone.values()) == {HCCL_BUFFER_BYTES // 2 // UNIT * UNIT}
    few = bucket_sizes(slow, stage=3, parameters=10**10, element_bytes=2, memory_bytes=30 * 2**20)
    assert (2 * few["reduce_bucket_size"] + few["stage3_prefetch_bucket_size"]) * 2 <= 30 * 2**20
    one = bucket_sizes(
        slow, stage=2, parameters=10**10, element_bytes=2, overlap=False, memory_bytes=30 * 2**20
    )
    assert one["reduce_bucket_size"] * 2 == 30 * 2**20


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"stage": 0}, "stage 0 has no buckets"),
        ({"parameters": 0}, "0 parameters need no buckets"),
        ({"memory_bytes": 100}, "100 bytes are no room for 2 buckets; give 4096 or more"),
    ],
)
def test_what_cannot_be_chosen_is_refused(more: dict[str, int], told: str) -> None:
    asked: dict[str, Any] = {"stage": 2, "parameters": 10**9, "element_bytes": 2} | more
    with pytest.raises(DsConfigError, match=told):
        bucket_sizes(links(), **asked)


def test_what_was_not_measured_is_told() -> None:
    asked = {"stage": 2, "parameters": 10**9, "element_bytes": 2}
    assert bucket_sizes(links(axis="world"), **asked) == bucket_sizes(links(), **asked)
    with pytest.raises(DsConfigError, match="has no all_reduce of dp or world, only all_reduce of tp, "):
        bucket_sizes(links(axis="tp"), **asked)
    with pytest.raises(DsConfigError, match="tells no latency"):
        bucket_sizes(links(latency=0.0), **asked)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "links.json"
    whole = links(backend="hccl", device="npu", simulated=True)
    file.write_text(whole.to_json())
    assert MeasuredLinks.from_file(file) == whole


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "holds no measured links"),
        ("{}", "holds no measured links"),
        ("[]", "holds no measured links"),
        ('{"measured_links": 2}', "is of version 2, not 1"),
        ('{"measured_links": 1, "axes": {"dp": {"ranks": 2}}}', "holds no measured links"),
    ],
)
def test_a_file_that_is_none_is_refused(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "links.json"
    file.write_text(text)
    with pytest.raises(DsConfigError, match=told):
        MeasuredLinks.from_file(file)


def test_a_speed_is_a_number_that_can_be() -> None:
    for wrong in ({"latency": -1.0}, {"bandwidth": 0.0}, {"latency": float("nan")}, {"largest": "many"}):
        with pytest.raises(DsConfigError, match=f"the {next(iter(wrong))} of a link is"):
            LinkSpeed(**({"latency": 1e-4, "bandwidth": 1e9, "largest": 8, "error": 0.0} | wrong))  # type: ignore[arg-type]


def generated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The configuration that `ds-config generate` prints."""
    assert main(["generate", "--for", "deepspeed", "--micro-batch", "1", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_generator_takes_the_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "links.json"
    file.write_text(links().to_json())
    asked = ("--stage", "2", "--optimizer", "AdamW", "lr=1e-4", "--links", str(file), "--params", "1B")
    zero = generated(capsys, *asked)["zero_optimization"]
    wanted = bucket_sizes(links(), stage=2, parameters=10**9, element_bytes=2, overlap=False)
    assert {key: zero[key] for key in wanted} == wanted
    half = generated(capsys, *asked, "--tp", "2", "--tp-by", "mpu", "--zero", "allgather_bucket_size=2048")
    assert half["zero_optimization"]["allgather_bucket_size"] == 2048
    wanted = bucket_sizes(links(), stage=2, parameters=5 * 10**8, element_bytes=2, overlap=False)
    assert half["zero_optimization"]["reduce_bucket_size"] == wanted["reduce_bucket_size"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--params", "1B"), "--params is the size of the model for --links"),
        (("--links", "gone.json", "--params", "1B"), "gone.json cannot be read"),
        (("--links", "gone.json"), "no model is named"),
        (
            ("--links", "gone.json", "--params", "1B", "--model", "llama-2-7b"),
            "--model and --params both say",
        ),
    ],
)
def test_links_without_a_model_and_a_model_without_links_are_refused(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--for", "deepspeed", "--stage", "2", *words]) == 2
    assert told in capsys.readouterr().err
