"""The matrix products of column- and row-parallel layers, with their communication, as autograd functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from npu_plugins.tensor_parallel.collectives import all_gathered, start_all_gather, start_reduce_scatter
from npu_plugins.tensor_parallel.deferred import WeightGradients

Grads = tuple[torch.Tensor | None, ...]


class ColumnMatmul(Function):
    """y = x Wᵀ + b with the rows of W (the columns of Wᵀ) divided over the group.

    f of the paper stands at its entry: the input gradients of all ranks are added up, and while that goes on
    the weight gradient is computed. With `sequence_parallel` x is a piece `[seq/tp, batch, in]`, gathered before
    the product and once more in the backward pass, so that between them only the piece is kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.nn.Parameter,
        bias: torch.nn.Parameter | None,
        group: dist.ProcessGroup | None,
        sequence_parallel: bool,
        store: WeightGradients | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        # The Parameter itself, too: what saved tensors give back under checkpointing may be another object,
        # and a gradient added to that one would be lost.
        ctx.parameters = weight, bias
        ctx.group, ctx.store = group, store
        ctx.sequence_parallel = sequence_parallel and group is not None
        if ctx.sequence_parallel:
            x = all_gathered(x, group, 0)  # [seq/tp, batch, in] → [seq, batch, in]
        return F.linear(x, weight, bias)  # [seq, batch, in] × [in, out/tp] → [seq, batch, out/tp]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> Grads:
        x, weight = ctx.saved_tensors
        gather = None
        if ctx.sequence_parallel and any(ctx.needs_input_grad[1:3]):
            x, gather = start_all_gather(x, ctx.group)  # runs beside the next product
        dy2 = dy.reshape(-1, dy.size(-1))
        dx, reduction = None, None
        if ctx.needs_input_grad[0]:
            dx = dy2.mm(weight)  # [tokens, out/tp] × [out/tp, in] → [tokens, in]
            dx = dx.view(*dy.shape[:-1], weight.size(1))
        if gather is not None:
            gather.wait()
        if dx is not None and ctx.sequence_parallel:
            dx, reduction = start_reduce_scatter(dx, ctx.group)
        elif dx is not None and ctx.group is not None:
            reduction = dist.all_reduce(dx, group=ctx.group, async_op=True)
        dw, db = weight_gradients(ctx, dy2, x)
        if reduction is not None:
            reduction.wait()
        return dx, dw, db, None, None, None


class RowMatmul(Function):
    """y = Σ x Wᵀ + b over the group, with the columns of W divided over it: g of the paper at its exit.

    With `sequence_parallel` the sum is scattered along the sequence: y is a piece `[seq/tp, batch, out]`. The
    backward pass gathers its gradient anyway, so that the bias gradient is whole on every rank at no cost.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.nn.Parameter,
        bias: torch.nn.Parameter | None,
        group: dist.ProcessGroup | None,
        sequence_parallel: bool,
        store: WeightGradients | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameters = weight, bias
        ctx.group, ctx.store = group, store
        ctx.sequence_parallel = sequence_parallel and group is not None
        if group is None:
            return F.linear(x, weight, bias)
        y = F.linear(x, weight).contiguous()  # [seq, batch, in/tp] × [in/tp, out] → [seq, batch, out]
        if ctx.sequence_parallel:
            y, work = start_reduce_scatter(y, group)  # [seq, batch, out] → [seq/tp, batch, out]
            work.wait()
        else:
            dist.all_reduce(y, group=group)
        return y if bias is None else y.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> Grads:
        x, weight = ctx.saved_tensors
        if ctx.sequence_parallel:
            dy = all_gathered(dy, ctx.group, 0)
        dy2 = dy.reshape(-1, dy.size(-1))
        dx = None
        if ctx.needs_input_grad[0]:
            dx = dy2.mm(weight)  # [tokens, out] × [out, in/tp] → [tokens, in/tp]
            dx = dx.view(*dy.shape[:-1], weight.size(1))
        dw, db = weight_gradients(ctx, dy2, x)
        return dx, dw, db, None, None, None


def weight_gradients(
    ctx: Any, dy2: torch.Tensor, x: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradients of weight and bias, or (None, None) after leaving them to the store."""
    weight, bias = ctx.parameters
    weight = weight if ctx.needs_input_grad[1] else None
    bias = bias if bias is not None and ctx.needs_input_grad[2] else None
    x2 = x.reshape(-1, x.size(-1))
    if ctx.store is not None and ctx.store.collecting:
        ctx.store.put(lambda: add_weight_gradients(weight, bias, dy2, x2))
        return None, None
    dw = None if weight is None else dy2.t().mm(x2)  # [out, tokens] × [tokens, in] → [out, in]
    db = None if bias is None else dy2.sum(0)  # [tokens, out] → [out]
    return dw, db


def add_weight_gradients(
    weight: torch.nn.Parameter | None, bias: torch.nn.Parameter | None, dy2: torch.Tensor, x2: torch.Tensor
) -> None:
    """W: add the gradients to `.grad` of the parameters, without a temporary where one is there already."""
    if weight is not None:
        if weight.grad is None:
            weight.grad = dy2.t().mm(x2)  # [out, tokens] × [tokens, in] → [out, in]
        else:
            weight.grad.addmm_(dy2.t(), x2)
    if bias is not None:
        db = dy2.sum(0)
        bias.grad = db if bias.grad is None else bias.grad.add_(db)
