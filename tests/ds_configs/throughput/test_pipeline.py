"""Bubbles of the schedules against the published table at unit costs, and stages that divide the layers."""

from __future__ import annotations

import pytest

from ds_configs.throughput.compute import Phase
from ds_configs.throughput.pipeline import bubble_seconds

UNIT = Phase(1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("schedule", "chunks", "bubble"),
    [
        ("gpipe", 1, 9.0),  # GPipe §2.3
        ("1f1b", 1, 9.0),  # Narayanan et al. 2021 §2.2.1
        ("interleaved", 2, 4.5),  # §2.2.2
        ("zb-h1", 1, 3.0),  # arXiv 2401.10241 §2.1
        ("zb-v", 1, 1.5),  # none inside a rank, and the skew of (p−1)/2 forward passes between ranks
    ],
)
def test_bubbles_at_unit_costs(schedule: str, chunks: int, bubble: float) -> None:
    assert bubble_seconds(schedule, [UNIT] * 4, chunks) == pytest.approx(bubble)


def test_one_slow_stage_makes_the_others_wait_in_the_steady_state_not_in_the_bubble() -> None:
    slow = Phase(2.0, 2.0, 2.0)
    assert bubble_seconds("1f1b", [UNIT, UNIT, slow]) == pytest.approx(6.0)
