"""Exact values: numpy adds, multiplies and compares them to the same results in every order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from npu_plugins.diagnostics.comm_perf.values import (
    PERIOD,
    REDUCTIONS,
    exact_limit,
    fill,
    reduced,
    sent,
    slack,
    wrong,
)

DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
)
RANKS = (1, 2, 3, 8, 13, 64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dtype_holds_every_whole_number_to_its_limit(dtype: torch.dtype) -> None:
    top = min(exact_limit(dtype), 2**16)
    numbers = torch.arange(top + 1)
    assert torch.equal(numbers.to(dtype).to(torch.int64), numbers)
    if dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        assert torch.tensor(exact_limit(dtype) + 1).to(dtype).to(torch.int64) != exact_limit(dtype) + 1


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_any_order_of_reduction_in_the_dtype_itself_gives_what_is_expected(reduction: str) -> None:
    combine = {"prod": torch.mul, "min": torch.minimum, "max": torch.maximum}.get(reduction, torch.add)
    shuffled = np.random.default_rng(0)
    for dtype in DTYPES:
        for ranks in RANKS:
            values = [sent(rank, ranks, reduction, dtype) for rank in range(ranks)]
            for value in values:
                assert torch.equal(value.to(dtype).to(torch.int64), value), (dtype, ranks)
            total = None
            for rank in shuffled.permutation(ranks):
                step = values[rank].to(dtype)
                # float8 has no arithmetic; what it would round to is what float32 is rounded to
                total = step if total is None else combine(total.double(), step.double()).to(dtype)
            assert total is not None
            found = total.double() / ranks if reduction == "avg" else total.double()
            assert torch.equal(found, reduced(ranks, reduction, dtype).double()), (dtype, ranks)


def test_what_is_copied_differs_between_ranks_and_reductions_are_not_the_same_everywhere() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        copies = torch.stack([sent(rank, 8, None, dtype) for rank in range(8)])
        assert all((copies[0] != copies[rank]).float().mean() > 0.9 for rank in range(1, 8))
        for reduction in REDUCTIONS:
            assert len(reduced(8, reduction, dtype).unique()) > 3, (dtype, reduction)


def test_an_average_multiplied_before_it_is_added_lies_within_the_slack() -> None:
    assert slack(4, "avg", torch.bfloat16) == slack(3, "sum", torch.bfloat16) == 0.0
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for ranks in (3, 5, 7, 12):
            total = torch.zeros(PERIOD, dtype=dtype)
            for rank in range(ranks):
                total += sent(rank, ranks, "avg", dtype).to(dtype) * torch.tensor(1 / ranks, dtype=dtype)
            expected = reduced(ranks, "avg", dtype).to(dtype)
            allowed = slack(ranks, "avg", dtype)
            assert wrong(total, expected, allowed) == 0
            assert wrong(total + 2 * allowed, expected, allowed) == PERIOD


def test_a_tensor_is_filled_from_any_place_on() -> None:
    period = torch.arange(PERIOD)
    for count in (0, 1, PERIOD - 1, PERIOD, 3 * PERIOD + 7):
        for start in (0, 5, PERIOD, 10 * PERIOD + 3):
            target = torch.full((count,), -1.0, dtype=torch.float64)
            fill(target, period, start)
            assert torch.equal(target, ((torch.arange(count) + start) % PERIOD).double())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_element_that_differs_in_a_bit_is_counted(dtype: torch.dtype) -> None:
    expected = torch.ones(100, dtype=torch.int32).to(dtype)
    found = expected.clone()
    assert wrong(found, expected) == wrong(found[:0], expected[:0]) == 0
    found.view(torch.uint8)[[0, 1, -1]] ^= 1
    assert wrong(found, expected) == (3 if found.element_size() == 1 else 2)
