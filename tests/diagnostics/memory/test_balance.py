"""Ranks that take more memory are named with what they take it for; balanced ones are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.diagnostics.memory import RankMemory, imbalances, memory_report
from npu_plugins.diagnostics.memory.balance import MODEL, OTHERS
from npu_plugins.diagnostics.memory.rank import ACTIVATIONS, FRAGMENTS

GB = 1 << 30


def rank(number: int, **changes: Any) -> RankMemory:
    """A rank that takes 10 GB at its peak, on a device of its own with 1 GB of the runtime's."""
    common: dict[str, Any] = {
        "host": "a",
        "device": f"npu:{number}",
        "place": f"pp {number}",
        "holds": f"layer {number}",
        "total": 64 * GB,
        "free": 53 * GB,
        "allocated": 8 * GB,
        "reserved": 10 * GB,
        "peak": 10 * GB,
        "peak_reserved": 10 * GB,
        "parameters": GB,
        "gradients": GB,
        "optimizer": 4 * GB,
    }
    return RankMemory(number, **{**common, **changes})


def test_equal_ranks_are_balanced() -> None:
    ranks = [rank(number) for number in range(4)]
    assert imbalances(ranks) == ()
    assert "balanced: the ranks differ by less than 10%" in memory_report(ranks)


CAUSES: list[tuple[dict[str, Any], str]] = [
    ({"parameters": 2 * GB, "optimizer": 8 * GB, "peak": 15 * GB, "peak_reserved": 15 * GB}, MODEL),
    ({"peak": 14 * GB, "peak_reserved": 14 * GB}, ACTIVATIONS),
    ({"peak_reserved": 13 * GB}, FRAGMENTS),
    ({"free": 40 * GB}, OTHERS),
]


@pytest.mark.parametrize(("changes", "cause"), CAUSES, ids=[cause for _, cause in CAUSES])
@pytest.mark.parametrize("number", [0, 2])
def test_the_cause_is_named(changes: dict[str, Any], cause: str, number: int) -> None:
    ranks = [rank(each) for each in range(4)]
    ranks[number] = replace(ranks[number], **changes)
    (found,) = imbalances(ranks)
    assert (found.rank, found.cause) == (number, cause)
    assert f"imbalance: rank {number} takes" in memory_report(ranks)


def test_a_rank_of_two_is_compared_with_the_smaller() -> None:
    ranks = [rank(0), rank(1, parameters=3 * GB, peak=12 * GB, peak_reserved=12 * GB, holds="layer 1, head")]
    (found,) = imbalances(ranks)
    assert str(found) == (
        "rank 1 takes 2.0GB more than rank 0, 2.0GB of it for the model's parameters, gradients and "
        "optimizer states (layer 1, head); move layers to other stages: pipeline.partition of "
        "ds_config, or fewer layers beside embedding and head"
    )


def test_most_ranks_may_be_the_heavy_ones() -> None:
    """As in a pipeline of three stages, whose first holds the embedding and whose last the head."""
    heavy = {"parameters": 3 * GB, "peak": 12 * GB, "peak_reserved": 12 * GB}
    found = imbalances([rank(0, **heavy), rank(1), rank(2, **heavy)])
    assert [(each.rank, each.compared, each.cause) for each in found] == [(0, 1, MODEL), (2, 1, MODEL)]


def test_ranks_that_share_a_device_are_no_other_processes() -> None:
    ranks = [replace(rank(number), device="npu:0", free=43 * GB) for number in range(2)]
    assert imbalances(ranks) == ()


def test_a_report_does_not_call_hccls_buffers_other_processes() -> None:
    """No allocator of torch's has them, and ranks in more groups have more."""
    text = memory_report([rank(0), rank(1, free=43 * GB)])
    assert "runtime, HCCL and other processes 1.0GB" in text
    assert "rank 1 takes 10.0GB more than rank 0, 10.0GB of it for runtime, HCCL and other processes" in text
    assert "HCCL_BUFFSIZE for each group" in text


@given(st.lists(st.integers(95, 100), min_size=2, max_size=9))
def test_small_differences_are_no_imbalance(peaks: list[int]) -> None:
    ranks = [
        rank(number, peak=peak * GB // 10, peak_reserved=peak * GB // 10) for number, peak in enumerate(peaks)
    ]
    assert imbalances(ranks) == ()


def test_many_ranks_fit_a_screen() -> None:
    ranks = [rank(number) for number in range(1024)]
    ranks[700] = replace(ranks[700], peak=30 * GB, peak_reserved=30 * GB)
    text = memory_report(ranks, step=5, simulated=True)
    assert text.startswith("memory of 1024 ranks after step 5 (simulated NPUs)\n")
    assert text.count("\n") < 24
    assert "Rank 700: 11.0GB used of 64.0GB, peak 30.0GB" in text
    assert "imbalance: rank 700 takes 20.0GB more" in text
