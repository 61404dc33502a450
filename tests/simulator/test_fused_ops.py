"""torch_npu's fused operators on a simulated NPU: outputs and gradients equal plain PyTorch formulas."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness import RankPool, World, WorldSpec
from tests.harness.npu import why_no_npu
from tests.simulator import attention_cases, fused_cases, routing_cases, update_cases

DTYPES = [torch.float32, torch.bfloat16]
few = settings(max_examples=6)


@pytest.fixture(scope="module")
def npu(rank_pool: RankPool) -> Iterator[World]:
    """One rank on an NPU, shared by all tests here: its start costs more than they do."""
    reason = why_no_npu()
    if reason:
        pytest.skip(reason)
    world = rank_pool.open(WorldSpec(size=1))
    yield world
    world.stop()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(fused_cases.CASES))
@few
@given(batch=st.integers(1, 3), rows=st.integers(1, 5), half=st.integers(4, 12))
def test_fused_operator(npu: World, name: str, dtype: torch.dtype, batch: int, rows: int, half: int) -> None:
    npu.run(fused_cases.check, name, dtype, batch, rows, 2 * half)


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("layout", sorted(attention_cases.LAYOUTS))
@few
@given(
    dtype=st.sampled_from([*DTYPES, torch.float16]),
    batch=st.integers(1, 2),
    key_heads=st.integers(1, 2),
    queries=st.integers(1, 9),
    keys=st.integers(1, 9),
)
def test_attention(
    npu: World,
    layout: str,
    mode: int,
    dtype: torch.dtype,
    batch: int,
    key_heads: int,
    queries: int,
    keys: int,
) -> None:
    npu.run(attention_cases.check_layout, layout, dtype, mode, batch, key_heads, queries, keys)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@few
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_packed_attention(npu: World, dtype: torch.dtype, lengths: list[int]) -> None:
    npu.run(attention_cases.check_packed, dtype, lengths)


# The scores of a head with 300 queries and keys are more than the reference works on at once.
@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("queries, keys", [(300, 280), (20, 150)])
def test_attention_in_several_tiles(npu: World, mode: int, queries: int, keys: int) -> None:
    npu.run(attention_cases.check_layout, "BSH", torch.float32, mode, 2, 2, queries, keys)


def test_packed_attention_in_several_tiles(npu: World) -> None:
    npu.run(attention_cases.check_packed, torch.float32, [300, 5, 270])


@pytest.mark.parametrize("size", [6, 64, 300])
def test_attention_extras(npu: World, size: int) -> None:
    npu.run(attention_cases.check_bias_and_statistics, size)
    npu.run(attention_cases.check_sink, size)
    npu.run(attention_cases.check_dropout, max(size, 64))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@few
@given(tokens=st.integers(1, 6), copies=st.integers(1, 3), experts=st.integers(3, 5))
def test_moe_permutation(npu: World, dtype: torch.dtype, tokens: int, copies: int, experts: int) -> None:
    npu.run(routing_cases.check_permutation, dtype, tokens, copies, experts)


@pytest.mark.parametrize("capacity", [None, 2])
def test_moe_routing_map(npu: World, capacity: int | None) -> None:
    npu.run(routing_cases.check_routing_map, capacity)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_grouped_products(npu: World, dtype: torch.dtype) -> None:
    npu.run(routing_cases.check_grouped_products, dtype, [3, 0, 4, 1])


def test_optimiser_steps(npu: World) -> None:
    npu.run(update_cases.check_adam_w)
    npu.run(update_cases.check_adam)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [("AdamW", {"lr": 1e-2}), ("Adam", {"lr": 1e-2}), ("SGD", {"lr": 1e-2, "momentum": 0.9})],
)
def test_fused_optimizers(npu: World, name: str, options: dict, clip: bool) -> None:
    npu.run(update_cases.check_fused_optimizer, name, options, clip)


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_dropout(npu: World, probability: float) -> None:
    npu.run(update_cases.check_dropout, probability)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_masked_softmax(npu: World, dtype: torch.dtype) -> None:
    npu.run(update_cases.check_masked_softmax, dtype)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_cross_entropy(npu: World, reduction: str, smoothing: float, weighted: bool) -> None:
    npu.run(update_cases.check_cross_entropy, reduction, smoothing, weighted)


def test_batch_norm_of_several_npus(npu: World) -> None:
    npu.run(update_cases.check_synchronised_batch_norm)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(npu: World, kind: str) -> None:
    npu.run(update_cases.check_recurrent, kind)


@pytest.mark.ranks(1)
def test_what_is_not_simulated_says_so(ranks: World) -> None:
    ranks.run(update_cases.check_unknown_operator)
