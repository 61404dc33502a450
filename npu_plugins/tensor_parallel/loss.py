"""Cross entropy of logits whose vocabulary is divided over the ranks of a tensor-parallel group."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.groups import rank_of, size_of

Reduction = Literal["mean", "sum", "none"]


def vocab_parallel_cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    vocab_size: int | None = None,
) -> torch.Tensor:
    """torch.nn.functional.cross_entropy without gathering the logits (Megatron-LM, arXiv 1909.08053 §3).

    Two all-reduces of a few numbers a token replace the gather of the whole vocabulary. Neither logits nor
    target are written to, and nothing as large as the logits is kept for the backward pass but the logits.

    Args:
        logits: `[seq, batch, vocab/tp]` (any leading dims), the rank's columns.
        target: ids `[seq, batch]`, the same on all ranks of the group.
        group: the tensor-parallel process group, None for one rank.
        label_smoothing: weight of the uniform distribution over the whole vocabulary, 0 to 1.
        ignore_index: the target of tokens that give neither loss nor gradient.
        reduction: "mean" over the tokens that are not ignored, "sum" or "none".
        vocab_size: ids of the vocabulary where the logits are padded at its end; padding has no part in the
            loss. None: all columns are ids.

    Returns:
        The loss in fp32 (fp64 for fp64 logits), the same on every rank: one number, or `[seq, batch]` for
        "none". If all tokens are ignored the mean is nan, as torch has it.

    Raises:
        TensorParallelError: shapes, options or a target (on a CPU; elsewhere the device's own gather reports
            it) do not fit.
    """
    size, rank = size_of(group), rank_of(group)
    width = logits.size(-1)
    vocab = width * size if vocab_size is None else vocab_size
    _check(logits, target, size, vocab, label_smoothing, ignore_index, reduction)
    columns = max(0, min(width, vocab - rank * width))  # without padding
    loss = _CrossEntropy.apply(
        logits, target, group, rank * width, columns, vocab, float(label_smoothing), ignore_index
    )
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    return loss.sum() / (target != ignore_index).sum()


class _CrossEntropy(Function):
    """The loss of every token.

    With z the logits less the largest of the token, V ids, L = log Σ exp z and smoothing ε, it is
    (1−ε)(L − z_target) + ε(L − Σz / V). The largest is taken off first, so that large logits cost no digits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target: torch.Tensor,
        group: dist.ProcessGroup | None,
        first: int,
        columns: int,
        vocab: int,
        smoothing: float,
        ignore_index: int,
    ) -> torch.Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        own = logits[..., :columns]
        ignored = target == ignore_index
        local = (target - first).masked_fill(ignored, -1)
        elsewhere = (local < 0) | (local >= columns)
        index = local.masked_fill(elsewhere, 0)
        # Behind the last column for a target that is no id: gather refuses it, on whatever device.
        index = index.masked_fill(~ignored & ((target < 0) | (target >= vocab)), logits.size(-1))
        # [seq, batch]; a rank that has padding only has no largest
        peak = own.amax(-1).to(wide) if columns else own.new_full(target.shape, -torch.inf, dtype=wide)
        if group is not None:
            dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
        picked = logits.gather(-1, index.unsqueeze(-1)).squeeze(-1) - peak
        shifted = own - peak.unsqueeze(-1)  # [seq, batch, vocab/tp]
        sums = [shifted.sum(-1)] if smoothing else []
        packed = torch.stack([shifted.exp_().sum(-1), picked.masked_fill(elsewhere, 0.0), *sums])
        if group is not None:
            dist.all_reduce(packed, group=group)
        log_sum = packed[0].log()
        loss = (1 - smoothing) * (log_sum - packed[1])
        if smoothing:
            loss = loss + smoothing * (log_sum - packed[2] / vocab)
        ctx.save_for_backward(logits, peak, packed[0], index, elsewhere, ignored)
        ctx.columns, ctx.vocab, ctx.smoothing = columns, vocab, smoothing
        return loss.masked_fill(ignored, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, peak, exp_sum, index, elsewhere, ignored = ctx.saved_tensors
        grad = torch.zeros_like(logits, dtype=peak.dtype, memory_format=torch.contiguous_format)
        own = grad[..., : ctx.columns]
        torch.sub(logits[..., : ctx.columns], peak.unsqueeze(-1), out=own)
        own.exp_().div_(exp_sum.unsqueeze(-1))  # softmax
        if ctx.smoothing:
            own.sub_(ctx.smoothing / ctx.vocab)
        hit = (~elsewhere).to(grad.dtype).mul_(ctx.smoothing - 1)
        grad.scatter_add_(-1, index.unsqueeze(-1), hit.unsqueeze(-1))
        grad.mul_(dloss.unsqueeze(-1)).masked_fill_(ignored.unsqueeze(-1), 0.0)
        return grad.to(logits.dtype), None, None, None, None, None, None, None


def _check(
    logits: torch.Tensor,
    target: torch.Tensor,
    ranks: int,
    vocab: int,
    label_smoothing: float,
    ignore_index: int,
    reduction: str,
) -> None:
    if logits.shape[:-1] != target.shape:
        raise TensorParallelError(
            f"vocab_parallel_cross_entropy: logits {tuple(logits.shape)} want targets of shape "
            f"{tuple(logits.shape[:-1])}, but they are {tuple(target.shape)}"
        )
    if not 0 <= label_smoothing <= 1:
        raise TensorParallelError(
            f"vocab_parallel_cross_entropy: label_smoothing is {label_smoothing}; give 0 to 1"
        )
    if reduction not in ("mean", "sum", "none"):
        raise TensorParallelError(
            f"vocab_parallel_cross_entropy: reduction is {reduction!r}; give 'mean', 'sum' or 'none'"
        )
    if not 1 <= vocab <= logits.size(-1) * ranks:
        raise TensorParallelError(
            f"vocab_parallel_cross_entropy: vocab_size is {vocab}, but {ranks} ranks × {logits.size(-1)} "
            f"columns hold {ranks * logits.size(-1)}; give the size without padding"
        )
    if target.device.type == "cpu":
        wrong = target[(target != ignore_index) & ((target < 0) | (target >= vocab))]
        if wrong.numel():
            raise TensorParallelError(
                f"vocab_parallel_cross_entropy: target {wrong[0].item()} is neither one of {vocab} ids nor "
                f"ignore_index {ignore_index}; check the labels"
            )
