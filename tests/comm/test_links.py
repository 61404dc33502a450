"""Latency and bandwidth: found again from times that they made, however large the messages are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_configs.measured_links import LinkSpeed
from npu_plugins.comm.errors import CommError
from npu_plugins.comm.links import fit

SIZES = [2**power for power in range(3, 27)]


@given(st.floats(1e-6, 1e-3), st.floats(1e8, 1e12))
def test_exact_times_give_their_latency_and_bandwidth(latency: float, bandwidth: float) -> None:
    speed = LinkSpeed(latency, bandwidth, SIZES[-1], 0.0)
    found = fit([(size, speed.seconds(size)) for size in SIZES])
    assert found.latency == pytest.approx(latency, rel=1e-6)
    assert found.largest == SIZES[-1]
    assert found.error < 1e-6
    if speed.seconds(SIZES[-1]) > 1.1 * latency:  # else no message is large enough to tell
        assert found.bandwidth == pytest.approx(bandwidth, rel=1e-4)


@given(st.lists(st.floats(0.8, 1.25), min_size=len(SIZES), max_size=len(SIZES)))
def test_times_that_vary_give_about_the_same_and_how_far_off_they_are(noise: list[float]) -> None:
    speed = LinkSpeed(5e-5, 1e10, SIZES[-1], 0.0)
    measured = [(size, speed.seconds(size) * by) for size, by in zip(SIZES, noise, strict=True)]
    found = fit(measured)
    assert found.latency == pytest.approx(speed.latency, rel=0.3)
    assert found.bandwidth == pytest.approx(speed.bandwidth, rel=0.4)
    assert found.error == pytest.approx(max(abs(found.seconds(size) / time - 1) for size, time in measured))


def test_a_line_below_zero_is_one_without_latency() -> None:
    found = fit([(10, 1.0), (20, 2.5), (40, 6.0)])
    assert found.latency == 0.0
    assert 6.5 < found.bandwidth < 10


@pytest.mark.parametrize(
    ("measured", "told"),
    [
        ([], "messages of two sizes or more"),
        ([(8, 1.0), (8, 2.0)], "messages of two sizes or more"),
        ([(8, 1.0), (16, 0.0)], "not all above 0 seconds"),
        ([(8, 1.0), (16, 0.5)], "which tells no bandwidth; measure larger ones"),
    ],
)
def test_times_that_tell_nothing_are_refused(measured: list[tuple[int, float]], told: str) -> None:
    with pytest.raises(CommError, match=told):
        fit(measured)
