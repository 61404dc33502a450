"""The collectives of tensor parallelism as pairs of forward and backward.

f and g are those of Megatron-LM (arXiv 1909.08053 §3): f lets a replicated tensor into a region where every
rank computes its own part, g adds the parts up where the region ends. With sequence parallelism (Korthikanti
et al., arXiv 2205.05198 §4.2) f becomes an all-gather and g a reduce-scatter along the sequence.

Every function takes the group explicitly; None stands for one rank and returns the tensor itself. No function
writes to its argument, and any strides are welcome: backends send memory, not views, so a tensor that is not
contiguous is copied first, in the forward and in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from npu_plugins.tensor_parallel.errors import TensorParallelError


def _all_gather_single(
    output: torch.Tensor, tensor: torch.Tensor, group: dist.ProcessGroup, later: bool
) -> Any:
    """torch 2.13 renamed all_gather_into_tensor; this package serves torch 2.1 and later."""
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return call(output, tensor, group=group, async_op=later)


def _reduce_scatter_single(
    output: torch.Tensor, tensor: torch.Tensor, group: dist.ProcessGroup, later: bool
) -> Any:
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return call(output, tensor, group=group, async_op=later)


def start_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """Begin to add up over the group, in place; the sum may be read after `wait()`.

    The group is asked itself: for small activations, what dist.all_reduce checks and logs takes longer than
    the sum.
    """
    return group.allreduce([tensor], _reduce_options(later=True))


def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Add up over the group, in place, in the order of the device's current stream."""
    work = group.allreduce([tensor], _reduce_options(later=False))
    if work is not None:
        work.wait()


def _reduce_options(later: bool) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    if hasattr(options, "asyncOp"):  # since torch 2.8: whether another stream may be taken
        options.asyncOp = later
    return options


def all_reduced(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """The sum over the group, in a new contiguous tensor. Not differentiable."""
    if group is None:
        return tensor
    result = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, group=group)
    return result


def all_gathered(tensor: torch.Tensor, group: dist.ProcessGroup | None, dim: int) -> torch.Tensor:
    """The group's tensors side by side along `dim`, in a new tensor. Not differentiable."""
    if group is None:
        return tensor
    gathered, work = start_all_gather(tensor.movedim(dim, 0), group)
    work.wait()
    return gathered.movedim(0, dim).contiguous()


def reduce_scattered(tensor: torch.Tensor, group: dist.ProcessGroup | None, dim: int) -> torch.Tensor:
    """The own piece along `dim` of the sum over the group, in a new tensor. Not differentiable."""
    if group is None:
        return tensor
    scattered, work = start_reduce_scatter(tensor.movedim(dim, 0), group)
    work.wait()
    return scattered.movedim(0, dim).contiguous()


def own_piece(tensor: torch.Tensor, group: dist.ProcessGroup | None, dim: int) -> torch.Tensor:
    """The own piece of a replicated tensor along `dim`, contiguous.

    Raises:
        TensorParallelError: the group's ranks do not divide the length.
    """
    if group is None:
        return tensor
    length = _piece_length(tensor, group, dim)
    return tensor.narrow(dim, group.rank() * length, length).contiguous()


def start_all_gather(tensor: torch.Tensor, group: dist.ProcessGroup) -> tuple[torch.Tensor, dist.Work]:
    """Begin to gather along dim 0; the result may be read after `wait()` of the second value."""
    tensor = tensor.contiguous()
    gathered = tensor.new_empty(tensor.size(0) * group.size(), *tensor.shape[1:])
    return gathered, _all_gather_single(gathered, tensor, group, later=True)


def start_reduce_scatter(tensor: torch.Tensor, group: dist.ProcessGroup) -> tuple[torch.Tensor, dist.Work]:
    """Begin to add up and scatter along dim 0; the result may be read after `wait()` of the second value."""
    tensor = tensor.contiguous()
    scattered = tensor.new_empty(_piece_length(tensor, group, 0), *tensor.shape[1:])
    return scattered, _reduce_scatter_single(scattered, tensor, group, later=True)


def _piece_length(tensor: torch.Tensor, group: dist.ProcessGroup, dim: int) -> int:
    length = tensor.size(dim)
    if length % group.size():
        raise TensorParallelError(
            f"A tensor of shape {tuple(tensor.shape)} cannot be divided over {group.size()} ranks along dim "
            f"{dim}: {length} is no multiple of {group.size()}; pad it (under sequence parallelism: the "
            "sequence)"
        )
    return length // group.size()


class _F(Function):
    """f: identity forward, all-reduce backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return all_reduced(grad, ctx.group), None


class _G(Function):
    """g: all-reduce forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        return all_reduced(tensor, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _Gather(Function):
    """All-gather of what is replicated afterwards: the backward pass takes the own piece."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return all_gathered(tensor, group, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return own_piece(grad, ctx.group, ctx.dim), None, None


class _Scatter(Function):
    """The own piece of what was replicated: the backward pass gathers."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return own_piece(tensor, group, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return all_gathered(grad, ctx.group, ctx.dim), None, None


class _SequenceF(Function):
    """f along the sequence: all-gather forward, reduce-scatter backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return all_gathered(tensor, group, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return reduce_scattered(grad, ctx.group, ctx.dim), None, None


class _SequenceG(Function):
    """g along the sequence: reduce-scatter forward, all-gather backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return reduce_scattered(tensor, group, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return all_gathered(grad, ctx.group, ctx.dim), None, None


def copy_to_region(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """f: a replicated tensor enters a region where every rank computes its own part; gradients add up."""
    return tensor if group is None else _F.apply(tensor, group)


def reduce_from_region(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """g: add up the ranks' parts; what follows is replicated, and so is its gradient."""
    return tensor if group is None else _G.apply(tensor, group)


def gather_from_region(tensor: torch.Tensor, group: dist.ProcessGroup | None, dim: int = -1) -> torch.Tensor:
    """Put the ranks' pieces side by side along `dim`; what follows is replicated, and so is its gradient."""
    return tensor if group is None else _Gather.apply(tensor, group, dim)


def scatter_to_region(tensor: torch.Tensor, group: dist.ProcessGroup | None, dim: int = -1) -> torch.Tensor:
    """Take the own piece of a replicated tensor along `dim`; gradients of all pieces are gathered.

    Raises:
        TensorParallelError: the group's ranks do not divide the length.
    """
    return tensor if group is None else _Scatter.apply(tensor, group, dim)


def gather_sequence(tensor: torch.Tensor, group: dist.ProcessGroup | None, dim: int = 0) -> torch.Tensor:
    """f along the sequence: pieces `[seq/tp, batch, hidden]` to the whole `[seq, batch, hidden]`.

    What follows computes different parts on every rank: their gradients are added up and scattered.
    """
    return tensor if group is None else _SequenceF.apply(tensor, group, dim)


def reduce_scatter_sequence(
    tensor: torch.Tensor, group: dist.ProcessGroup | None, dim: int = 0
) -> torch.Tensor:
    """g along the sequence: add up parts `[seq, batch, hidden]`, keep a piece `[seq/tp, batch, hidden]`.

    Raises:
        TensorParallelError: the group's ranks do not divide the length.
    """
    return tensor if group is None else _SequenceG.apply(tensor, group, dim)


def sum_gradients(parameters: Iterable[torch.nn.Parameter], group: dist.ProcessGroup | None) -> None:
    """Let the gradients of replicated parameters be added up over the group.

    Under sequence parallelism a normalisation or a bias between the tensor-parallel regions sees a piece of
    the sequence on every rank, and gets a part of its gradient there. A hook on the parameter adds the parts
    up in each backward pass, before anything else sees the gradient. For parameters that are used on pieces
    only: one that sees the whole sequence would be counted once per rank.

    Args:
        parameters: replicated ones, the same and in the same order of use on all ranks.
        group: the tensor-parallel group; None: nothing is to be done.

    Raises:
        TensorParallelError: a parameter is sharded, or has such a hook already.
    """
    if group is None:
        return
    for parameter in parameters:
        if getattr(parameter, "tensor_model_parallel", False):
            raise TensorParallelError(
                f"A parameter of shape {tuple(parameter.shape)} is sharded over the group: adding up its "
                "gradient would mix different shards; pass replicated parameters only"
            )
        if getattr(parameter, "sums_gradients", False):
            raise TensorParallelError(
                f"The gradient of a parameter of shape {tuple(parameter.shape)} is added up already; pass "
                "each parameter once"
            )
        parameter.sums_gradients = True
        # None: the weight gradient of a layer that defers it, which comes later and passes here again.
        parameter.register_hook(lambda grad: None if grad is None else all_reduced(grad, group))
