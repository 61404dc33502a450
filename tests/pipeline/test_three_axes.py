"""Tensor, pipeline and data parallelism together: Hugging Face models train as they do in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.pool import RankPool
from tests.pipeline import three_axes_cases as cases
from tests.pipeline.conftest import Ranks, kept
from tests.pipeline.three_axes_models import Run


@pytest.fixture(scope="module", params=["gloo", "hccl"])
def eight(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Eight ranks on CPUs, then eight on NPUs."""
    yield from kept(rank_pool, 8, request.param)


@pytest.mark.parametrize("family", ["Llama", "GPT2"])
def test_tp_2_pp_2_dp_2(eight: Ranks, family: str) -> None:
    """Five steps under a schedule with whole backwards and one with split ones and two stages on a rank."""
    runs = [
        Run(family, schedule="1f1b", optimizer="AdamW"),
        Run(family, schedule="zb-v"),
    ]
    eight.run(cases.like_one_process, eight.backend, 2, 2, runs, timeout=240)
