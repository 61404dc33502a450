"""Deferred weight gradients: the traps of splitting a backward pass, each with its test.

That the gradients are right in every mode is shown with the layers (test_linear.py, test_blocks.py).
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from npu_plugins.tensor_parallel import (
    ColumnParallelLinear,
    GatedParallelMLP,
    RowParallelLinear,
    TensorParallelError,
    WeightGradients,
)
from tests.harness.pool import World
from tests.tensor_parallel.comparing import (
    assert_close,
    count_calls,
    device,
    group,
    normal,
    own_piece,
    recomputed,
)


def stack(store: WeightGradients | None, layers: int = 2) -> nn.Sequential:
    """Column layers of one rank."""
    return nn.Sequential(*(ColumnParallelLinear(6, 6, seed=n, weight_gradients=store) for n in range(layers)))


def gradients(module: nn.Module) -> list[torch.Tensor | None]:
    """`.grad` of every parameter."""
    return [parameter.grad for parameter in module.parameters()]


def test_w_may_run_in_any_order_and_later_micro_batches_do_not_mix() -> None:
    store = WeightGradients()
    own, full = stack(store), stack(None)
    for stage, micro_batch in ((0, 0), (0, 1), (1, 0)):
        x = normal(10 * stage + micro_batch, 4, 6)
        with store.at(stage, micro_batch):
            own(x).sin().sum().backward()
    assert store.pending == [(0, 0), (0, 1), (1, 0)]
    assert gradients(own) == [None] * 4
    for stage, micro_batch in ((0, 1), (1, 0), (0, 0)):
        full(normal(10 * stage + micro_batch, 4, 6)).sin().sum().backward()
        store.run(stage, micro_batch)
        for got, expected in zip(gradients(own), gradients(full), strict=True):
            assert_close((stage, micro_batch), got, expected)
    assert store.pending == []
    store.check_done()


def test_outside_the_store_the_backward_pass_is_whole() -> None:
    store = WeightGradients()
    own, full, x = stack(store), stack(None), normal(0, 4, 6)
    with store.at(0, 0):
        y = own(x)  # the place of the backward pass counts, not that of the forward pass
    y.sum().backward()
    full(x).sum().backward()
    for got, expected in zip(gradients(own), gradients(full), strict=True):
        assert torch.equal(got, expected)


def test_w_that_is_missing_or_run_twice_is_refused() -> None:
    store = WeightGradients()
    with store.at(0, 3):
        stack(store)(normal(0, 4, 6)).sum().backward()
    with pytest.raises(TensorParallelError, match=r"stage 0, micro-batch 2 \(pending: \[\(0, 3\)\]\)"):
        store.run(0, 2)
    with pytest.raises(TensorParallelError, match=r"\[\(0, 3\)\] have not run their W"):
        store.check_done()
    store.run(0, 3)
    with pytest.raises(TensorParallelError, match=r"pending: none"):
        store.run(0, 3)
    with pytest.raises(TensorParallelError, match="outside of"):
        store.put(lambda: None)


class Tagged(torch.autograd.Function):
    """Identity; its node lives as long as the graph, and `tag` as long as the node."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tag: list) -> torch.Tensor:
        ctx.tag = tag
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        return dy, None


class Tag:
    """Something that a weak reference can watch."""


def test_the_graph_behind_the_input_is_freed_before_w_runs() -> None:
    """Else the activations of the whole stage would stay until W has run."""
    store, tag = WeightGradients(), Tag()
    watched, own = weakref.ref(tag), stack(store)
    y = own(Tagged.apply(normal(0, 4, 6).requires_grad_(), tag))
    del tag
    with store.at(0, 0):
        y.sum().backward()
    del y
    gc.collect()
    assert watched() is None and store.pending == [(0, 0)]


def test_w_leaves_no_graph_and_frees_its_activations() -> None:
    store = WeightGradients()
    own, x = stack(store, layers=1), normal(0, 4, 6)
    watched = StorageWeakRef(x.untyped_storage())
    for micro_batch in (0, 1):
        with store.at(0, micro_batch):
            own(x).sum().backward()
    store.run(0, 0)
    del x
    gc.collect()
    assert not watched.expired()  # W of the other micro-batch needs it
    store.run(0, 1)
    gc.collect()
    assert watched.expired()
    for parameter in own.parameters():
        assert parameter.grad.grad_fn is None and not parameter.grad.requires_grad


def test_a_gradient_that_is_there_is_added_to_in_place() -> None:
    """No temporary as large as the weight, and whoever holds the gradient's memory keeps it."""
    store = WeightGradients()
    own = stack(store, layers=1)
    for parameter in own.parameters():
        parameter.grad = torch.ones_like(parameter)
    held = gradients(own)
    with store.at(0, 0):
        own(normal(0, 4, 6)).sum().backward()
    store.run(0, 0)
    assert all(got is before for got, before in zip(gradients(own), held, strict=True))
    assert_close("added", own[0].bias.grad, torch.full((6,), 5.0))


def test_a_whole_backward_pass_may_add_to_the_gradient_itself() -> None:
    """`at_once`: autograd gets no product to add, and finds gradients that are right and the same memory."""
    store = WeightGradients()
    own, full = stack(store), stack(None)
    hooked, calls = own[1].weight, []
    hooked.register_post_accumulate_grad_hook(calls.append)
    held = None
    for micro_batch in range(3):
        with store.at_once():
            own(normal(micro_batch, 4, 6)).sin().sum().backward()
        full(normal(micro_batch, 4, 6)).sin().sum().backward()
        held = own[0].weight.grad if held is None else held
    assert store.pending == [] and not store.in_place
    assert own[0].weight.grad is held and held is not None and held.grad_fn is None
    assert calls == [hooked] * 3, "autograd still delivers where somebody waits"
    for got, expected in zip(gradients(own), gradients(full), strict=True):
        assert_close("at once", got, expected)
    leaves = torch.autograd.grad(own(normal(0, 4, 6)).sum(), list(own.parameters()))
    assert all(leaf is not None for leaf in leaves), "outside of it autograd gets all gradients"


def test_hooks_on_parameters_fire_when_w_runs() -> None:
    """ZeRO and BF16_Optimizer's immediate update hang on them; in I they are called without a gradient."""
    store = WeightGradients()
    own, full, fired = stack(store), stack(None), []

    def fire(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            fired.append(parameter)

    for parameter in own.parameters():
        parameter.register_post_accumulate_grad_hook(fire)
    own[0].weight.register_hook(lambda grad: None if grad is None else 2 * grad)
    for micro_batch in (0, 1):
        with store.at(0, micro_batch):
            own(normal(micro_batch, 4, 6)).sum().backward()
        full(normal(micro_batch, 4, 6)).sum().backward()
    assert fired == []
    store.run(0, 1)
    store.run(0, 0)
    assert sorted(map(id, fired)) == sorted(2 * [id(p) for p in own.parameters()])
    full[0].weight.grad *= 2
    for got, expected in zip(gradients(own), gradients(full), strict=True):
        assert_close("hooked", got, expected)


@pytest.mark.parametrize("recomputation", ["kept", "reentrant", "non-reentrant"])
def test_collectives_fire_once(cpu_ranks: World, recomputation: str) -> None:
    """torch's own split of the graph runs a custom function's whole backward pass twice, reductions too."""

    def body(recomputation: str) -> dict[str, int]:
        store = WeightGradients()
        own = GatedParallelMLP(12, 16, group=group(), seed=0, weight_gradients=store)
        x = normal(0, 4, 12).requires_grad_()

        def run() -> None:
            y = recomputed(own, recomputation)(x)
            with store.at(0, 0):
                y.sum().backward()
            store.run(0, 0)

        return count_calls(["all_reduce"], run)

    forwards = 1 if recomputation == "kept" else 2
    assert cpu_ranks.run(body, recomputation) == [{"all_reduce": forwards + 1}] * cpu_ranks.size


def test_under_sequence_parallelism_the_input_is_gathered_by_w(tp_ranks: World) -> None:
    """I neither gathers the input nor keeps a whole one: only the piece waits for W."""

    def body() -> None:
        for kind, in_i, in_w in ((ColumnParallelLinear, 0, 1), (RowParallelLinear, 1, 0)):
            store = WeightGradients()
            own = kind(
                8,
                8,
                group=group(),
                sequence_parallel=True,
                seed=0,
                weight_gradients=store,
                device=device(),
            )
            x = normal(0, 8, 1, 8)
            x = (own_piece(x, 0) if kind is ColumnParallelLinear else own_piece(x, -1)).to(device())
            y = own(x.requires_grad_())
            with store.at(0, 0):
                names = ["all_gather_single"]
                assert count_calls(names, lambda y=y: y.sum().backward()) == {"all_gather_single": in_i}
            assert count_calls(names, lambda s=store: s.run(0, 0)) == {"all_gather_single": in_w}

    tp_ranks.run(body)
