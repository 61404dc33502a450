"""The autograd pairs: each against the plain formula on the stacked tensors of all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.tensor_parallel import (
    ColumnParallelLinear,
    TensorParallelError,
    copy_to_region,
    gather_from_region,
    gather_sequence,
    reduce_from_region,
    reduce_scatter_sequence,
    scatter_to_region,
    sum_gradients,
)
from tests.harness.pool import World
from tests.tensor_parallel.comparing import (
    assert_close,
    assert_same_gradients,
    device,
    group,
    laid_out,
    normal,
    own_piece,
)

SHAPE = (4, 8, 12)
LAYOUTS = ["contiguous", "transposed", "expanded", "strided"]
Tensors = list[torch.Tensor]


def total(parts: Tensors, dim: int) -> Tensors:
    """Every rank gets the sum."""
    return [torch.stack(parts).sum(0)] * len(parts)


def whole(parts: Tensors, dim: int) -> Tensors:
    """Every rank gets all parts side by side."""
    return [torch.cat(parts, dim)] * len(parts)


def pieces_of_total(parts: Tensors, dim: int) -> Tensors:
    """Every rank gets its piece of the sum."""
    return list(torch.stack(parts).sum(0).chunk(len(parts), dim))


def pieces(parts: Tensors, dim: int) -> Tensors:
    """Every rank keeps its piece of its own."""
    return [part.chunk(len(parts), dim)[rank] for rank, part in enumerate(parts)]


def same(parts: Tensors, dim: int) -> Tensors:
    """Every rank keeps its own."""
    return parts


PAIRS: list[tuple[Callable, bool, Callable, Callable]] = [  # function, takes a dim, forward, backward
    (copy_to_region, False, same, total),
    (reduce_from_region, False, total, same),
    (gather_from_region, True, whole, pieces),
    (scatter_to_region, True, pieces, whole),
    (gather_sequence, True, whole, pieces_of_total),
    (reduce_scatter_sequence, True, pieces_of_total, whole),
]


def test_every_pair_in_every_layout_and_dim(tp_ranks: World) -> None:
    """Also where input or gradient is not contiguous: megatron-core and AutoTP return the unreduced one."""

    def body() -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        for (function, takes_dim, forward, backward), layout, dtype in itertools.product(
            PAIRS, LAYOUTS, (torch.float32, torch.bfloat16)
        ):
            for dim in (0, 1, -1) if takes_dim else (0,):
                mode = (function.__name__, layout, dtype, dim)
                inputs = [laid_out(normal(r, *SHAPE).to(dtype), layout) for r in range(world)]
                outputs = forward(inputs, dim)
                grads = [laid_out(normal(9 + r, *outputs[0].shape).to(dtype), layout) for r in range(world)]
                x = laid_out(inputs[rank].to(device()), layout).requires_grad_()
                dy = laid_out(grads[rank].to(device()), layout)
                kept = x.detach().clone(), dy.clone()
                y = function(x, group(), dim) if takes_dim else function(x, group())
                y.backward(dy)
                bound = 1e-6 if dtype == torch.float32 else 2e-2
                assert_close((*mode, "y"), y, outputs[rank], bound)
                assert_close((*mode, "dx"), x.grad, backward(grads, dim)[rank], bound)
                assert torch.equal(x, kept[0]) and torch.equal(dy, kept[1]), (*mode, "was written to")

    tp_ranks.run(body)


def test_one_rank_is_left_alone() -> None:
    x = normal(0, *SHAPE)
    for function, *_ in PAIRS:
        assert function(x, None) is x


def test_a_length_that_the_ranks_do_not_divide_is_refused(cpu_ranks: World) -> None:
    def body() -> None:
        for function in (scatter_to_region, reduce_scatter_sequence):
            with pytest.raises(TensorParallelError, match=r"shape \(7, 2\).*along dim 0: 7 is no multiple"):
                function(normal(0, 7, 2), group(), 0)

    cpu_ranks.run(body)


def test_sums_of_the_gradients_of_what_sees_a_piece_of_the_sequence(tp_ranks: World) -> None:
    """A LayerNorm between tensor-parallel regions, under sequence parallelism."""

    def body() -> None:
        full, own = nn.LayerNorm(12), nn.LayerNorm(12).to(device())
        sum_gradients(own.parameters(), group())
        for seed in (1, 2):  # gradients accumulate over micro-batches
            x, dy = normal(seed, 8, 3, 12), normal(seed + 5, 8, 3, 12)
            full(x).backward(dy)
            own(own_piece(x, 0).to(device())).backward(own_piece(dy, 0).to(device()))
        assert_same_gradients("norm", own, full)

    tp_ranks.run(body)


def test_sums_of_gradients_are_refused_for_sharded_parameters_and_twice(cpu_ranks: World) -> None:
    def body() -> None:
        with pytest.raises(TensorParallelError, match="sharded over the group"):
            sum_gradients(ColumnParallelLinear(4, 8, group=group(), seed=0).parameters(), group())
        norm = nn.LayerNorm(4)
        sum_gradients(norm.parameters(), group())
        with pytest.raises(TensorParallelError, match="added up already"):
            sum_gradients(norm.parameters(), group())

    cpu_ranks.run(body)
