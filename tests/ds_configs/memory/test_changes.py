"""The search for changes: what it proposes fits, is the cheapest, and keeps world and batch."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_configs.memory import MemoryJob, estimate
from ds_configs.memory.changes import cheapest_ways, single_changes
from ds_configs.models import find_model
from ds_configs.parallel import ParallelConfig

GIB = 1 << 30


@settings(max_examples=25)
@given(
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from([(8, 1, 1), (2, 4, 1), (4, 1, 2)]),
    st.sampled_from([1, 4]),
    st.integers(20, 60),
)
def test_every_way_fits_and_keeps_world_and_batch(
    stage: int, degrees: tuple[int, int, int], micro_batch: int, hbm: int
) -> None:
    dp, tp, pp = degrees
    stage = min(stage, 1) if pp > 1 else stage
    job = MemoryJob(
        find_model("llama-3-8b"), ParallelConfig(tp=tp, pp=pp, dp=dp), stage, micro_batch=micro_batch,
        accumulation=8, sequence=2048,
    )  # fmt: skip
    ways = cheapest_ways(job, hbm * GIB)
    assert [way.cost for way in ways] == sorted(way.cost for way in ways)
    for way in ways:
        assert estimate(way.job).fits(hbm * GIB)
        assert way.job.parallel.world_size == job.parallel.world_size
        assert _global_batch(way.job) == _global_batch(job)


def _global_batch(job: MemoryJob) -> int:
    return job.parallel.dp * job.micro_batch * job.accumulation


def test_no_cheaper_pair_was_missed() -> None:
    """Against brute force over one and two changes."""
    job = MemoryJob(find_model("llama-3-8b"), ParallelConfig(dp=8), 2, micro_batch=4, sequence=4096)
    capacity = 48 * GIB
    best = cheapest_ways(job, capacity, wanted=1)[0]
    firsts = list(single_changes(job))
    brute = [change.cost for change in firsts if estimate(change.job).fits(capacity)]
    for first in firsts:
        brute += [
            first.cost + second.cost
            for second in single_changes(first.job)
            if estimate(second.job).fits(capacity)
        ]
    assert best.cost <= min(brute)


def test_proposals_do_not_contain_one_another() -> None:
    job = MemoryJob(find_model("llama-3-8b"), ParallelConfig(dp=8), 2, micro_batch=8, sequence=4096)
    ways = [{change.kind for change in way.settled} for way in cheapest_ways(job, 60 * GIB, wanted=5)]
    assert len(ways) > 1
    assert not any(one <= other or other <= one for one, other in combinations(ways, 2))


def test_what_cannot_fit_has_no_way() -> None:
    job = MemoryJob(find_model("llama-3-70b"), ParallelConfig(), 0)
    assert cheapest_ways(job, GIB) == []


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_each_change_says_what_and_for_which_price(stage: int) -> None:
    job = MemoryJob(
        find_model("llama-3-8b"), ParallelConfig(dp=8), stage, micro_batch=2, attention="eager"
    )  # fmt: skip
    changes = list(single_changes(job))
    assert changes
    assert all(change.what and change.price and change.job != job for change in changes)
