"""Tensor, pipeline and data parallelism together: Hugging Face models train as they do in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.pool import RankPool
from tests.pipeline import three_axes_cases as cases
from tests.pipeline.conftest import Ranks, kept
from tests.pipeline.three_axes_models import Run

PRELOAD = ("deepspeed", "tests.tensor_parallel.modeling")
OTHERS = ("Qwen2", "Qwen3", "Mistral", "Gemma", "Phi3")


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on CPUs."""
    rank_pool.preload(*PRELOAD)
    yield from kept(rank_pool, 4, "gloo")


@pytest.fixture(scope="module")
def four_npus(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on NPUs."""
    rank_pool.preload(*PRELOAD)
    yield from kept(rank_pool, 4, "hccl")


@pytest.fixture(scope="module")
def eight_npus(rank_pool: RankPool) -> Iterator[Ranks]:
    """Eight ranks on NPUs."""
    rank_pool.preload(*PRELOAD)
    yield from kept(rank_pool, 8, "hccl")


def test_tp_2_pp_2_dp_2(eight_npus: Ranks) -> None:
    """Five steps under a schedule with whole backwards and one with split ones and two stages on a rank."""
    runs = [
        Run("Llama", schedule="1f1b", optimizer="AdamW"),
        Run("GPT2", schedule="zb-v"),
    ]
    eight_npus.run(cases.like_one_process, eight_npus.backend, 2, 2, runs, timeout=240)


def test_variants(eight_npus: Ranks) -> None:
    """Divided logits, untied weights, ZeRO-1 and recomputation; each model under the other's schedule."""
    runs = [
        Run(schedule="zb-v", tied=False, gather_logits=False, recomputation="full", steps=2),
        Run("GPT2", schedule="1f1b", gather_logits=False, zero=1, recomputation="full", steps=2),
    ]
    eight_npus.run(cases.like_one_process, eight_npus.backend, 2, 2, runs, timeout=240)


def test_half_precision(four_npus: Ranks) -> None:
    """With fp32 accumulation (bf16 without ZeRO), and with a loss scale, which the norms do not show."""
    runs = [
        Run(schedule="zb-v", precision="bf16", steps=2),
        Run("GPT2", schedule="zb-h1", precision="fp16", gather_logits=False, steps=2),
    ]
    four_npus.run(cases.like_one_process, four_npus.backend, 2, 2, runs, timeout=240)


def test_every_other_family(four: Ranks) -> None:
    """Two steps on tp 2 × pp 2."""
    runs = [
        Run(family, schedule=schedule, tied=family == "Gemma", steps=2)
        for family, schedule in zip(
            OTHERS, ("1f1b", "zb-h1", "zb-v", "interleaved", "dualpipe-v"), strict=True
        )
    ]
    four.run(cases.like_one_process, four.backend, 2, 2, runs, timeout=240)


def test_dropout(four: Ranks) -> None:
    four.run(cases.dropout, four.backend)


def test_evaluation(four: Ranks) -> None:
    four.run(cases.evaluates, four.backend)


def test_data_of_deepspeed(four: Ranks) -> None:
    four.run(cases.data_of_deepspeed, four.backend)


def test_worlds_that_do_not_divide(four: Ranks) -> None:
    four.run(cases.worlds_that_do_not_divide, four.backend)
