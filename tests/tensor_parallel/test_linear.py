"""Column- and row-parallel layers compute what torch.nn.Linear computes, in every mode and layout."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from npu_plugins.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    WeightGradients,
    gather_full,
    shard_of,
)
from tests.harness.pool import World
from tests.tensor_parallel.comparing import (
    assert_close,
    assert_same_gradients,
    count_calls,
    device,
    group,
    laid_out,
    normal,
    own_piece,
    recomputed,
)

SEQ, BATCH, IN, OUT = 8, 3, 12, 20
LAYOUTS = ["contiguous", "transposed", "expanded", "strided"]
RECOMPUTATION = ["kept", "reentrant", "non-reentrant"]
MODES = list(
    itertools.product([True, False], [False, True], [False, True], RECOMPUTATION, LAYOUTS)
)  # bias, sequence_parallel, deferred, recomputation, layout


def full_layer(bias: bool = True, seed: int = 3) -> nn.Linear:
    """The unsharded layer."""
    torch.manual_seed(seed)
    return nn.Linear(IN, OUT, bias)


def run_layer(
    layer: nn.Module, x: torch.Tensor, dy: torch.Tensor, store: WeightGradients | None, recomputation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two micro-batches, the second of twice the gradient, W in the other order; output, input's gradient."""
    x = x.to(device()).requires_grad_()
    for micro_batch in (0, 1):
        y = recomputed(layer, recomputation)(x)
        if store is None:
            y.backward((micro_batch + 1) * dy.to(device()))
        else:
            with store.at(0, micro_batch):
                y.backward((micro_batch + 1) * dy.to(device()))
    if store is not None:
        assert layer.weight.grad is None
        store.run(0, 1)
        store.run(0, 0)
        store.check_done()
    return y, x.grad


def expected(full: nn.Linear, x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The unsharded layer's output and input gradient for the same two micro-batches."""
    x = x.clone().requires_grad_()
    y = full(x)
    y.backward(3 * dy)
    return y, x.grad


def check_column(bias: bool, sequence: bool, deferred: bool, recomputation: str, layout: str) -> None:
    """One mode of ColumnParallelLinear."""
    mode = ("column", bias, sequence, deferred, recomputation, layout)
    full, store = full_layer(bias), WeightGradients() if deferred else None
    torch.manual_seed(3)
    own = ColumnParallelLinear(
        IN, OUT, group=group(), bias=bias, sequence_parallel=sequence, device=device(), weight_gradients=store
    )
    x, dy = laid_out(normal(1, SEQ, BATCH, IN), layout), laid_out(normal(2, SEQ, BATCH, OUT), layout)
    y, dx = expected(full, x, dy)
    own_x = own_piece(x, 0) if sequence else x
    got_y, got_dx = run_layer(own, own_x, own_piece(dy, -1), store, recomputation)
    assert_close((*mode, "y"), got_y, own_piece(y, -1))
    assert_close((*mode, "dx"), got_dx, own_piece(dx, 0) if sequence else dx)
    assert_same_gradients(mode, own, full)


def check_row(bias: bool, sequence: bool, deferred: bool, recomputation: str, layout: str) -> None:
    """One mode of RowParallelLinear."""
    mode = ("row", bias, sequence, deferred, recomputation, layout)
    full, store = full_layer(bias), WeightGradients() if deferred else None
    torch.manual_seed(3)
    own = RowParallelLinear(
        IN, OUT, group=group(), bias=bias, sequence_parallel=sequence, device=device(), weight_gradients=store
    )
    x, dy = laid_out(normal(1, SEQ, BATCH, IN), layout), laid_out(normal(2, SEQ, BATCH, OUT), layout)
    y, dx = expected(full, x, dy)
    own_dy = own_piece(dy, 0) if sequence else dy
    got_y, got_dx = run_layer(own, own_piece(x, -1), own_dy, store, recomputation)
    assert_close((*mode, "y"), got_y, own_piece(y, 0) if sequence else y)
    assert_close((*mode, "dx"), got_dx, own_piece(dx, -1))
    assert_same_gradients(mode, own, full)


def test_every_mode_of_the_column_layer(tp_ranks: World) -> None:
    def body() -> None:
        for mode in MODES:
            check_column(*mode)

    tp_ranks.run(body)


def test_every_mode_of_the_row_layer(tp_ranks: World) -> None:
    def body() -> None:
        for mode in MODES:
            check_row(*mode)

    tp_ranks.run(body)


def test_whole_outputs_and_whole_inputs(tp_ranks: World) -> None:
    """gather_output=True and input_is_parallel=False: the layers take and give what nn.Linear does."""

    def body() -> None:
        for kind, option in (
            (ColumnParallelLinear, {"gather_output": True}),
            (RowParallelLinear, {"input_is_parallel": False}),
        ):
            for layout in LAYOUTS:
                full = full_layer()
                own = kind(IN, OUT, group=group(), seed=3, device=device(), **option)
                x, dy = (laid_out(normal(1, SEQ, BATCH, n), layout) for n in (IN, OUT))
                y, dx = expected(full, x, dy)
                got_y, got_dx = run_layer(own, x, dy, None, "kept")
                assert_close((kind, layout, "y"), got_y, y)
                assert_close((kind, layout, "dx"), got_dx, dx)
                assert_same_gradients((kind, layout), own, full)

    tp_ranks.run(body)


def test_a_pair_with_its_bias_left_to_the_caller(tp_ranks: World) -> None:
    """skip_bias_add: column → gelu(y + b) → row → y + b, with and without sequence parallelism."""

    def body() -> None:
        for sequence in (False, True):
            torch.manual_seed(3)
            full = nn.Sequential(nn.Linear(IN, OUT), nn.GELU(), nn.Linear(OUT, IN))
            torch.manual_seed(3)
            options = {"group": group(), "sequence_parallel": sequence, "skip_bias_add": True}
            own = nn.ModuleList(
                [
                    ColumnParallelLinear(IN, OUT, device=device(), **options),
                    RowParallelLinear(OUT, IN, device=device(), **options),
                ]
            )
            x, dy = normal(1, SEQ, BATCH, IN), normal(2, SEQ, BATCH, IN)
            y = full(x)
            y.backward(dy)
            piece = (lambda t: own_piece(t, 0)) if sequence else (lambda t: t)
            hidden, bias = own[0](piece(x).to(device()))
            out, last_bias = own[1](nn.functional.gelu(hidden + bias))
            out = out + last_bias
            out.backward(piece(dy).to(device()))
            assert_close((sequence, "y"), out, piece(y))
            assert_same_gradients(sequence, own, full)

    tp_ranks.run(body)


def test_padded_output_features(tp_ranks: World) -> None:
    """An output layer over 21 ids on 2 or 4 ranks: zero rows at the end, gone from a gathered output."""

    def body() -> None:
        torch.manual_seed(3)
        full = nn.Linear(IN, 21)
        x, dy = normal(1, SEQ, BATCH, IN), normal(2, SEQ, BATCH, 21)
        y, dx = expected(full, x, dy)
        own = ColumnParallelLinear(
            IN, 21, group=group(), gather_output=True, divisible_by=3, seed=3, device=device()
        )
        assert own.weight.size(0) * dist.get_world_size() == 24
        got_y, got_dx = run_layer(own, x, dy, None, "kept")
        assert_close("y", got_y, y)
        assert_close("dx", got_dx, dx)
        assert_same_gradients("padded", own, full)
        held = shard_of(own.weight).slices[0]
        padding = own.weight[held[1] - held[0] :]
        assert not padding.any() and not own.weight.grad[held[1] - held[0] :].any()

    tp_ranks.run(body)


@pytest.mark.parametrize("precision", ["bf16", "autocast"])
def test_half_precision(tp_ranks: World, precision: str) -> None:
    """As close to fp32 as bf16 gets; under autocast gradients arrive in the fp32 parameters."""

    def body(precision: str) -> None:
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        for sequence, deferred in itertools.product([False, True], repeat=2):
            torch.manual_seed(3)
            full = nn.Sequential(nn.Linear(IN, OUT), nn.Linear(OUT, IN))
            store = WeightGradients() if deferred else None
            options: dict[str, Any] = {"group": group(), "sequence_parallel": sequence}
            torch.manual_seed(3)
            own = nn.Sequential(
                ColumnParallelLinear(IN, OUT, weight_gradients=store, **options),
                RowParallelLinear(OUT, IN, weight_gradients=store, **options),
            ).to(device(), dtype)
            x, dy = normal(1, SEQ, BATCH, IN), normal(2, SEQ, BATCH, IN)
            y, _ = expected(full, x, dy)
            piece = (lambda t: own_piece(t, 0)) if sequence else (lambda t: t)
            x = piece(x).to(device(), dtype).requires_grad_()
            for scale in (1, 2):
                with torch.autocast(device().type, torch.bfloat16, enabled=precision == "autocast"):
                    out = own(x)
                with store.at(0, scale) if store else torch.enable_grad():
                    out.backward(scale * piece(dy).to(device(), out.dtype))
                if store:
                    store.run(0, scale)
            assert out.dtype == torch.bfloat16
            assert {p.grad.dtype for p in own.parameters()} == {dtype} and x.grad.dtype == dtype
            assert_close((sequence, deferred), out, piece(y), 2e-2)
            assert_same_gradients((sequence, deferred), own, full, 2e-2)

    tp_ranks.run(body, precision)


def test_one_reduction_in_each_direction(tp_ranks: World) -> None:
    """A column-row pair all-reduces once forward and once backward, and gathers nothing."""

    def body() -> dict[str, int]:
        own = nn.Sequential(
            ColumnParallelLinear(IN, OUT, group=group(), seed=0, device=device()),
            RowParallelLinear(OUT, IN, group=group(), seed=0, device=device()),
        )
        x = normal(1, SEQ, BATCH, IN).to(device()).requires_grad_()
        names = ["all_reduce", "all_gather_single", "reduce_scatter_single", "all_gather"]
        return count_calls(names, lambda: own(x).sum().backward())

    expected_calls = {"all_reduce": 2, "all_gather_single": 0, "reduce_scatter_single": 0, "all_gather": 0}
    assert tp_ranks.run(body) == [expected_calls] * tp_ranks.size


class Recorded(TorchDispatchMode):
    """Names of the products and collectives that run within, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func.namespace == "c10d" or func.__name__.startswith(("mm", "addmm")):
            self.names.append(func.__name__.partition(".")[0])
        return func(*args, **(kwargs or {}))


def test_the_reduction_runs_beside_the_weight_gradient(cpu_ranks: World) -> None:
    """Its call lies between the two products, and it is waited for behind them."""

    def body() -> list[list[str]]:
        seen = []
        for sequence in (False, True):
            own = ColumnParallelLinear(IN, OUT, group=group(), seed=0, bias=False, sequence_parallel=sequence)
            y = own(normal(1, SEQ, BATCH, IN).requires_grad_())
            with Recorded() as recorded:
                y.backward(torch.ones_like(y))
            seen.append(recorded.names)
        return seen

    plain = ["mm", "allreduce_", "mm"]
    sequence = ["_allgather_base_", "mm", "_reduce_scatter_base_", "mm"]
    assert cpu_ranks.run(body) == [[plain, sequence]] * cpu_ranks.size


def test_between_the_passes_only_the_piece_of_the_sequence_is_kept(cpu_ranks: World) -> None:
    def body() -> int:
        own = ColumnParallelLinear(IN, OUT, group=group(), seed=0, bias=False, sequence_parallel=True)
        kept: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            own(own_piece(normal(1, SEQ, BATCH, IN), 0).requires_grad_())
        return sum(tensor.numel() for tensor in kept if tensor is not own.weight)

    assert cpu_ranks.run(body) == [SEQ * BATCH * IN // cpu_ranks.size] * cpu_ranks.size


def test_an_input_without_gradient_is_not_reduced(cpu_ranks: World) -> None:
    def body() -> int:
        own = ColumnParallelLinear(IN, OUT, group=group(), seed=0)
        return count_calls(["all_reduce"], lambda: own(normal(1, 2, IN)).sum().backward())["all_reduce"]

    assert cpu_ranks.run(body) == [0] * cpu_ranks.size


def test_frozen_parameters_get_no_gradient(cpu_ranks: World) -> None:
    def body() -> None:
        for kind, features in ((ColumnParallelLinear, IN), (RowParallelLinear, IN // dist.get_world_size())):
            for store in (None, WeightGradients()):
                own = kind(IN, OUT, group=group(), seed=0, weight_gradients=store)
                own.weight.requires_grad_(False)
                x = normal(1, SEQ, features).requires_grad_()
                if store is None:
                    own(x).sum().backward()
                else:
                    with store.at(0, 0):
                        own(x).sum().backward()
                    store.run(0, 0)
                assert own.weight.grad is None and own.bias.grad is not None and x.grad is not None

    cpu_ranks.run(body)


def test_the_default_group_serves_where_only_a_size_is_given(tp_ranks: World) -> None:
    """As short examples write it: Layer(in_features, out_features, tp_size)."""

    def body() -> None:
        torch.manual_seed(3)
        full = nn.Sequential(nn.Linear(IN, OUT, bias=False), nn.Linear(OUT, IN, bias=False))
        torch.manual_seed(3)
        size = dist.get_world_size()
        own = nn.Sequential(
            ColumnParallelLinear(IN, OUT, size, bias=False), RowParallelLinear(OUT, IN, size, bias=False)
        ).to(device())
        x = normal(1, SEQ, BATCH, IN)
        assert_close("y", own(x.to(device())), full(x))
        alone = ColumnParallelLinear(IN, OUT, size, gather_output=True, bias=False, seed=4).to(device())
        torch.manual_seed(4)
        assert_close("gathered", alone(x.to(device())), nn.Linear(IN, OUT, bias=False)(x))

    tp_ranks.run(body)


def test_one_rank_is_torch_nn_linear() -> None:
    for kind in (ColumnParallelLinear, RowParallelLinear):
        for options in ({}, {"tp_size": 1}, {"sequence_parallel": True}):
            own, full = kind(IN, OUT, seed=3, **options), full_layer()
            x = normal(1, SEQ, BATCH, IN)
            assert torch.equal(own(x), full(x))
            assert shard_of(own.weight) is None and not hasattr(own.weight, "tensor_model_parallel")


def test_parameters_say_what_they_hold(cpu_ranks: World) -> None:
    def body() -> None:
        column = ColumnParallelLinear(IN, OUT, group=group(), seed=0)
        row = RowParallelLinear(IN, OUT, group=group(), seed=0)
        for parameter, dim, length in ((column.weight, 0, OUT), (column.bias, 0, OUT), (row.weight, 1, IN)):
            assert parameter.tensor_model_parallel is True and parameter.partition_dim == dim
            shard = shard_of(parameter)
            assert (shard.dim, shard.rank, shard.full_size) == (dim, dist.get_rank(), length)
        assert shard_of(row.bias) is None and not hasattr(row.bias, "tensor_model_parallel")
        assert torch.equal(gather_full(row.bias, None, group()), row.bias)

    cpu_ranks.run(body)
