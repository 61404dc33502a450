"""The matrix products of column- and row-parallel layers, with their communication, as autograd functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from npu_plugins.tensor_parallel.collectives import (
    all_gathered,
    all_reduce,
    start_all_gather,
    start_all_reduce,
    start_reduce_scatter,
)
from npu_plugins.tensor_parallel.deferred import WeightGradients, deliver, deliver_product, is_plain

Grads = tuple[torch.Tensor | None, ...]


class Setting(NamedTuple):
    """What the products are told besides their tensors: one argument, since `apply` looks at each in turn.

    Attributes:
        group: the tensor-parallel group, or None: nothing is communicated.
        sequence_parallel: whether the input or the output is a piece of the sequence (dim 0).
        store: where the weight gradient is left when it is to run later, or None.
    """

    group: dist.ProcessGroup | None
    sequence_parallel: bool
    store: WeightGradients | None


def first_order(backward: Callable[..., Grads]) -> Callable[..., Grads]:
    """once_differentiable, which takes as long as a view or two, for those passes alone that may need it."""
    guarded = once_differentiable(backward)

    @functools.wraps(backward)
    def run(ctx: Any, dy: torch.Tensor) -> Grads:
        return guarded(ctx, dy) if torch.is_grad_enabled() else backward(ctx, dy)

    return run


class ColumnMatmul(Function):
    """y = x Wᵀ + b with the rows of W (the columns of Wᵀ) divided over the group.

    f of the paper stands at its entry: the input gradients of all ranks are added up, and while that goes on
    the weight gradient is computed. With `sequence_parallel` x is a piece `[seq/tp, batch, in]`, gathered
    before the product and once more in the backward pass, so that between them only the piece is kept.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, setting: Setting
    ) -> torch.Tensor:
        _keep(ctx, x, weight, bias, setting)
        if setting.sequence_parallel:
            x = all_gathered(x, setting.group, 0)  # [seq/tp, batch, in] → [seq, batch, in]
        return F.linear(x, weight, bias)  # [seq, batch, in] × [in, out/tp] → [seq, batch, out/tp]

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: torch.Tensor) -> Grads:
        x, weight = ctx.saved_tensors
        needs_dx, needs_dw, *_ = ctx.needs_input_grad
        group, sequence_parallel, store = ctx.setting
        sequence_parallel = sequence_parallel and group is not None
        later = store is not None and store.collecting
        gather = None
        if sequence_parallel and needs_dw and not later:
            x, gather = start_all_gather(x, group)  # runs beside the next product
        dy2 = dy.reshape(-1, dy.size(-1))
        dx, reduction = None, None
        if needs_dx:
            dx = _input_gradient(dy, dy2, weight)  # [seq, batch, out/tp] × [out/tp, in] → [seq, batch, in]
        if gather is not None:
            gather.wait()
        if dx is not None and sequence_parallel:
            dx, reduction = start_reduce_scatter(dx, group)
        elif dx is not None and group is not None:
            reduction = start_all_reduce(dx, group)
        if later:
            _leave_weight_gradients(ctx, dy2, x, group if sequence_parallel else None)
            dw, db = None, None
        else:
            dw, db = _weight_gradients(ctx, dy2, x)
        if reduction is not None:
            reduction.wait()
        return dx, dw, db, None


class RowMatmul(Function):
    """y = Σ x Wᵀ + b over the group, with the columns of W divided over it: g of the paper at its exit.

    With `sequence_parallel` the sum is scattered along the sequence: y is a piece `[seq/tp, batch, out]`. The
    backward pass gathers its gradient anyway, so that the bias gradient is whole on every rank at no cost.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, setting: Setting
    ) -> torch.Tensor:
        _keep(ctx, x, weight, bias, setting)
        group = setting.group
        if group is None:
            return F.linear(x, weight, bias)
        y = F.linear(x, weight).contiguous()  # [seq, batch, in/tp] × [in/tp, out] → [seq, batch, out]
        if setting.sequence_parallel:
            y, work = start_reduce_scatter(y, group)  # [seq, batch, out] → [seq/tp, batch, out]
            work.wait()
        else:
            all_reduce(y, group)
        return y if bias is None else y.add_(bias)

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: torch.Tensor) -> Grads:
        x, weight = ctx.saved_tensors
        needs_dx = ctx.needs_input_grad[0]
        group, sequence_parallel, store = ctx.setting
        if sequence_parallel:
            dy = all_gathered(dy, group, 0)  # [seq/tp, batch, out] → [seq, batch, out]
        dy2 = dy.reshape(-1, dy.size(-1))
        dx = None
        if needs_dx:
            dx = _input_gradient(dy, dy2, weight)  # [seq, batch, out] × [out, in/tp] → [seq, batch, in/tp]
        if store is not None and store.collecting:
            _leave_weight_gradients(ctx, dy2, x, None)
            return dx, None, None, None
        return dx, *_weight_gradients(ctx, dy2, x), None


def _keep(
    ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, setting: Setting
) -> None:
    """Keep what the backward pass needs.

    The input is for the weight's gradient only, and is not kept for a frozen one. With a store the Parameter
    itself is kept, too: what saved tensors give back under checkpointing may be another object, and a
    gradient added to that one would be lost.
    """
    ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
    ctx.setting = setting
    if setting.store is not None:
        ctx.parameters = weight, bias


def _input_gradient(dy: torch.Tensor, dy2: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """dy Wᵀ in the shape of the input; always contiguous, as collectives want it."""
    return dy2.mm(weight).view(*dy.shape[:-1], weight.size(1))


def _weight_gradients(ctx: Any, dy2: torch.Tensor, x: torch.Tensor | None) -> Grads:
    """The gradients of weight and bias for autograd; None where they were added in place, or are not wanted.

    Args:
        ctx: of the layer's forward pass.
        dy2: the output's gradient `[tokens, out]`.
        x: the whole input `[…, in]`; None for a frozen weight.
    """
    _, needs_dw, needs_db, _ = ctx.needs_input_grad
    store = ctx.setting.store
    dw, db = None, dy2.sum(0) if needs_db else None  # [tokens, out] → [out]
    if needs_dw and x is not None:
        left, right = dy2.t(), x.reshape(-1, x.size(-1))  # [out, tokens] × [tokens, in] → [out, in]
        if store is not None and store.in_place and is_plain(ctx.parameters[0]):
            deliver_product(ctx.parameters[0], left, right)
        else:
            dw = left.mm(right)
    return dw, db


def _leave_weight_gradients(
    ctx: Any, dy2: torch.Tensor, x: torch.Tensor | None, gather_from: dist.ProcessGroup | None
) -> None:
    """Leave the gradients of weight and bias to the store.

    Args:
        ctx: of the layer's forward pass.
        dy2: the output's gradient `[tokens, out]`.
        x: the input `[…, in]`; None for a frozen weight.
        gather_from: the group whose pieces of the input W gathers along the sequence, or None.
    """
    weight, bias = ctx.parameters
    _, needs_dw, needs_db, _ = ctx.needs_input_grad
    if not needs_dw and not needs_db:
        return
    # Detached, or the graph behind it, with all its activations, would stay until W has run.
    kept = x.detach() if needs_dw and x is not None else None

    def run() -> None:
        if kept is not None:
            x2 = all_gathered(kept, gather_from, 0).reshape(-1, kept.size(-1))
            deliver_product(weight, dy2.t(), x2)  # [out, tokens] × [tokens, in] → [out, in]
        if needs_db:
            deliver(bias, dy2.sum(0))  # [tokens, out] → [out]

    ctx.setting.store.put(run)
