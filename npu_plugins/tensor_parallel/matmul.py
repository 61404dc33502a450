"""The matrix products of column- and row-parallel layers, with their communication, as autograd functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from npu_plugins.tensor_parallel.collectives import all_gathered, start_all_gather, start_reduce_scatter
from npu_plugins.tensor_parallel.deferred import WeightGradients, deliver, deliver_product

Grads = tuple[torch.Tensor | None, ...]


class ColumnMatmul(Function):
    """y = x Wᵀ + b with the rows of W (the columns of Wᵀ) divided over the group.

    f of the paper stands at its entry: the input gradients of all ranks are added up, and while that goes on
    the weight gradient is computed. With `sequence_parallel` x is a piece `[seq/tp, batch, in]`, gathered
    before the product and once more in the backward pass, so that between them only the piece is kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        group: dist.ProcessGroup | None,
        sequence_parallel: bool,
        store: WeightGradients | None,
    ) -> torch.Tensor:
        _keep(ctx, x, weight, bias, store)
        ctx.group = group
        ctx.sequence_parallel = sequence_parallel and group is not None
        if ctx.sequence_parallel:
            x = all_gathered(x, group, 0)  # [seq/tp, batch, in] → [seq, batch, in]
        return F.linear(x, weight, bias)  # [seq, batch, in] × [in, out/tp] → [seq, batch, out/tp]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> Grads:
        x, weight = ctx.saved_tensors
        later = ctx.store is not None and ctx.store.collecting
        gather = None
        if ctx.sequence_parallel and ctx.needs_input_grad[1] and not later:
            x, gather = start_all_gather(x, ctx.group)  # runs beside the next product
        dy2 = dy.reshape(-1, dy.size(-1))
        dx, reduction = None, None
        if ctx.needs_input_grad[0]:
            dx = _input_gradient(dy, dy2, weight)  # [seq, batch, out/tp] × [out/tp, in] → [seq, batch, in]
        if gather is not None:
            gather.wait()
        if dx is not None and ctx.sequence_parallel:
            dx, reduction = start_reduce_scatter(dx, ctx.group)
        elif dx is not None and ctx.group is not None:
            reduction = dist.all_reduce(dx, group=ctx.group, async_op=True)
        dw, db = _weight_gradients(ctx, dy2, x, ctx.group if later and ctx.sequence_parallel else None)
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
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        group: dist.ProcessGroup | None,
        sequence_parallel: bool,
        store: WeightGradients | None,
    ) -> torch.Tensor:
        _keep(ctx, x, weight, bias, store)
        ctx.group = group
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
            dy = all_gathered(dy, ctx.group, 0)  # [seq/tp, batch, out] → [seq, batch, out]
        dy2 = dy.reshape(-1, dy.size(-1))
        dx = None
        if ctx.needs_input_grad[0]:
            dx = _input_gradient(dy, dy2, weight)  # [seq, batch, out] × [out, in/tp] → [seq, batch, in/tp]
        dw, db = _weight_gradients(ctx, dy2, x, None)
        return dx, dw, db, None, None, None


def _keep(
    ctx: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    store: WeightGradients | None,
) -> None:
    """Keep what the backward pass needs.

    With a store that is the Parameter itself, too: what saved tensors give back under checkpointing may be
    another object, and a gradient added to that one would be lost.
    """
    ctx.save_for_backward(x, weight)
    ctx.store = store
    ctx.parameters = (weight, bias) if store is not None else None


def _input_gradient(dy: torch.Tensor, dy2: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """dy Wᵀ in the shape of the input; always contiguous, as collectives want it."""
    return dy2.mm(weight).view(*dy.shape[:-1], weight.size(1))


def _weight_gradients(
    ctx: Any, dy2: torch.Tensor, x: torch.Tensor, gather_from: dist.ProcessGroup | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradients of weight and bias, or (None, None) after leaving them to the store.

    Args:
        ctx: of the layer's forward pass.
        dy2: the output's gradient `[tokens, out]`.
        x: the input `[…, in]`.
        gather_from: the group whose pieces of the input W gathers along the sequence, or None.
    """
    _, needs_dw, needs_db, *_ = ctx.needs_input_grad
    if ctx.store is not None and ctx.store.collecting:
        weight, bias = ctx.parameters
        x = x.detach()  # or the graph behind it, with all its activations, would stay until W has run

        def run() -> None:
            if needs_dw:
                x2 = all_gathered(x, gather_from, 0).reshape(-1, x.size(-1))
                deliver_product(weight, dy2.t(), x2)  # [out, tokens] × [tokens, in] → [out, in]
            if needs_db:
                deliver(bias, dy2.sum(0))  # [tokens, out] → [out]

        ctx.store.put(run)
        return None, None
    dw = dy2.t().mm(x.reshape(-1, x.size(-1))) if needs_dw else None  # [out, tokens] × [tokens, in]
    db = dy2.sum(0) if needs_db else None  # [tokens, out] → [out]
    return dw, db
