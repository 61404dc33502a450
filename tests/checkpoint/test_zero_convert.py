"""DeepSpeed's ZeRO checkpoints, converted as its own tools do, and loaded by it at other stages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.zero_cases import Zero, from_weights, round_trip
from tests.harness.pool import RankPool
from tests.pipeline.conftest import Ranks, kept
from tests.tensor_parallel.models import PRELOAD


@pytest.fixture(scope="module", params=["gloo", "hccl"])
def two(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Two ranks on CPUs, then two on NPUs."""
    rank_pool.preload(*PRELOAD)
    yield from kept(rank_pool, 2, request.param)


CASES = {
    "gloo": [Zero(1, "fp32", 3, tied=True), Zero(2, "bf16", 1, frozen=True), Zero(3, "fp32", 2, frozen=True)],
    "hccl": [Zero(1, "bf16", 2), Zero(2, "fp16", 3), Zero(3, "fp16", 1)],
}


def test_zero_checkpoints_become_what_deepspeeds_tools_make(two: Ranks, tmp_path: Path) -> None:
    for case in CASES[two.backend]:
        two.run(round_trip, two.backend, case, str(tmp_path))


def test_deepspeed_begins_with_converted_weights(two: Ranks, tmp_path: Path) -> None:
    if two.backend == "hccl":
        pytest.skip("nothing of it depends on the device")
    for stage in (1, 3):
        two.run(from_weights, two.backend, stage, str(tmp_path))
