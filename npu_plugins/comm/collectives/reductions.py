"""all_reduce, reduce and reduce_scatter of every dtype, with an explicit group.

They are torch.distributed's, with its arguments; what a backend does not reduce is done as the table in
`dtypes` says. `group=None` is the default group, as in torch. With ``async_op=True`` the result may be read
after `wait()` of the handle that is returned; the second of two steps is begun there, so ranks must wait for
such handles in one order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.comm.collectives.copies import all_gather_into_tensor, all_to_all_single, backend_for
from npu_plugins.comm.collectives.dtypes import COMMON, SUM, Route, carrier, reduce_rows, route
from npu_plugins.comm.collectives.work import Pending, settle
from npu_plugins.comm.errors import CommError

CHUNK_BYTES = 64 * 2**20
"""Two steps take this much of a tensor at a time, so that they need no more than twice that beside it."""
SMALL_BYTES = 64 * 2**10
"""Up to this much from all ranks together, every rank gets all of it: one collective in place of two."""


def native(tensor: torch.Tensor, op: Any, group: dist.ProcessGroup | None) -> bool:
    """Return whether the group's backend reduces such a tensor by itself."""
    return _route(tensor, op, group) is None


def all_reduce(
    tensor: torch.Tensor,
    op: Any = SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce a tensor over the group, in place; all ranks get the same bits.

    Args:
        tensor: any shape and dtype, contiguous.
        op: one of torch's ReduceOp.
        group: None: the default group.
        async_op: return a handle at once.

    Returns:
        A handle with `wait()`, or None.

    Raises:
        CommError: the op means nothing for the dtype, or the tensor is not contiguous.
    """
    how = _route(tensor, op, group)
    if how is None:
        return dist.all_reduce(tensor, op, group=group, async_op=async_op)
    flat, ranks = _flat(tensor), dist.get_world_size(group)
    if how.in_two_steps:
        return _in_two_steps(flat, how, group, async_op, lambda piece, result: _put(piece, result))
    wire = how.encode(flat)
    work = dist.all_reduce(wire, how.op, group=group, async_op=async_op)
    return settle([work], lambda: _put(flat, how.decode(wire, ranks)), async_op)


def reduce(
    tensor: torch.Tensor,
    dst: int,
    op: Any = SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce a tensor over the group, in place on global rank `dst`; other arguments as `all_reduce`.

    In two steps all ranks reduce, but only `dst` keeps the result.
    """
    how = _route(tensor, op, group)
    if how is None:
        return dist.reduce(tensor, dst, op, group=group, async_op=async_op)
    flat, ranks = _flat(tensor), dist.get_world_size(group)
    keeps = dist.get_rank() == dst

    def put(piece: torch.Tensor, result: torch.Tensor) -> None:
        if keeps:
            _put(piece, result)

    if how.in_two_steps:
        return _in_two_steps(flat, how, group, async_op, put)
    wire = how.encode(flat)
    work = dist.reduce(wire, dst, how.op, group=group, async_op=async_op)
    return settle([work], lambda: put(flat, how.decode(wire, ranks)), async_op)


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,  # torch's name
    op: Any = SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce `input` over the group and give each rank its part, in the order of the group.

    Args:
        output: gets this rank's part.
        input: ranks × the elements of `output`, of the same dtype, contiguous.
        op: as `all_reduce`.
        group: as `all_reduce`.
        async_op: as `all_reduce`.

    Returns:
        A handle with `wait()`, or None.

    Raises:
        CommError: as `all_reduce`; the sizes do not fit.
    """
    how = _route(input, op, group)
    if how is None:
        return _reduce_scatter_single(output, input, op, group, async_op)
    ranks = dist.get_world_size(group)
    part, whole = _flat(output), _flat(input)
    if whole.numel() != ranks * part.numel() or whole.dtype != part.dtype:
        raise CommError(
            f"reduce_scatter_tensor over {ranks} ranks needs an input of {ranks} × the {part.numel()} "
            f"{part.dtype} elements of the output, and was given {whole.numel()} of {whole.dtype}"
        )
    if not how.in_two_steps:
        wire = how.encode(whole)
        found = wire.new_empty(wire.numel() // ranks)
        work = _reduce_scatter_single(found, wire, how.op, group, async_op)
        return settle([work], lambda: _put(part, how.decode(found, ranks)), async_op)
    table = whole.view(ranks, -1)
    step = part.numel() if async_op else max(1, CHUNK_BYTES // (ranks * whole.element_size()))
    for start in range(0, part.numel(), max(1, step)):
        piece = part[start : start + step]
        sent = table[:, start : start + step].reshape(-1)
        received = torch.empty_like(sent)
        work = all_to_all_single(received, sent, group=group, async_op=async_op)

        def finish(piece: torch.Tensor = piece, received: torch.Tensor = received) -> None:
            _put(piece, reduce_rows(list(received.view(ranks, -1)), how))

        pending = settle([work], finish, async_op)
        if pending is not None:
            return pending
    return Pending([], _nothing) if async_op else None


def reduce_scatter(
    output: torch.Tensor,
    input_list: list[torch.Tensor],
    op: Any = SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce the tensors of `input_list`, one for each rank of the group, and give each rank its own.

    As `reduce_scatter_tensor`, but the ranks' tensors may differ in size, and two steps take all at once.
    """
    how = _route(output, op, group)
    if how is None:
        return dist.reduce_scatter(output, input_list, op, group=group, async_op=async_op)
    part, parts = _flat(output), [_flat(tensor) for tensor in input_list]
    ranks = dist.get_world_size(group)
    if len(parts) != ranks or any(each.dtype != part.dtype for each in parts):
        raise CommError(
            f"reduce_scatter over {ranks} ranks needs {ranks} tensors of the output's {part.dtype}, and was "
            f"given {len(parts)} of {', '.join(sorted({str(each.dtype) for each in parts}))}"
        )
    if how.in_two_steps:
        received = part.new_empty(ranks * part.numel())
        work = all_to_all_single(
            received,
            torch.cat(parts),
            output_split_sizes=[part.numel()] * ranks,
            input_split_sizes=[each.numel() for each in parts],
            group=group,
            async_op=async_op,
        )
        return settle([work], lambda: _put(part, reduce_rows(list(received.view(ranks, -1)), how)), async_op)
    wires = [how.encode(each) for each in parts]
    found = torch.empty_like(wires[dist.get_rank(group)])
    work = dist.reduce_scatter(found, wires, how.op, group=group, async_op=async_op)
    return settle([work], lambda: _put(part, how.decode(found, ranks)), async_op)


def _reduce_scatter_single(
    output: torch.Tensor, whole: torch.Tensor, op: Any, group: dist.ProcessGroup | None, async_op: bool
) -> Any:
    """torch 2.13 renamed reduce_scatter_tensor; this package serves torch 2.1 and later."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return call(output, whole, op, group=group, async_op=async_op)


def _route(tensor: torch.Tensor, op: Any, group: dist.ProcessGroup | None) -> Route | None:
    if (tensor.dtype in COMMON and op == SUM) or dist.get_rank(group) < 0:
        return None  # a rank outside of the group gets torch's own warning
    return route(backend_for(tensor, group), tensor.dtype, op)


def _in_two_steps(
    flat: torch.Tensor,
    how: Route,
    group: dist.ProcessGroup | None,
    async_op: bool,
    put: Callable[[torch.Tensor, torch.Tensor], None],
) -> Pending | None:
    step = max(1, flat.numel() if async_op else CHUNK_BYTES // flat.element_size())
    for start in range(0, flat.numel(), step):
        pending = _two_steps_of(flat[start : start + step], how, group, async_op, put)
        if pending is not None:
            return pending
    return Pending([], _nothing) if async_op else None


def _two_steps_of(
    piece: torch.Tensor,
    how: Route,
    group: dist.ProcessGroup | None,
    async_op: bool,
    put: Callable[[torch.Tensor, torch.Tensor], None],
) -> Pending | None:
    """Reduce one piece: all ranks get all elements if these are few, else each reduces its share for all."""
    ranks, count = dist.get_world_size(group), piece.numel()
    if ranks * count * piece.element_size() <= SMALL_BYTES:
        gathered = piece.new_empty(ranks * count)
        work = all_gather_into_tensor(gathered, piece, group=group, async_op=async_op)
        return settle([work], lambda: put(piece, reduce_rows(list(gathered.view(ranks, -1)), how)), async_op)
    share = -(-count // ranks)
    sent = piece if share * ranks == count else _padded(piece, share * ranks)
    received = torch.empty_like(sent)
    work = all_to_all_single(received, sent, group=group, async_op=async_op)

    def finish() -> None:
        mine = reduce_rows(list(received.view(ranks, -1)), how).contiguous()
        all_gather_into_tensor(received, mine, group=group)
        put(piece, received[:count])

    return settle([work], finish, async_op)


def _padded(piece: torch.Tensor, count: int) -> torch.Tensor:
    """The elements with others behind them, up to `count`; the others are never read as a result."""
    padded = piece.new_empty(count)
    _put(padded[: piece.numel()], piece)
    return padded


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_contiguous():
        raise CommError(
            f"A collective needs a contiguous tensor, and this one of shape {list(tensor.shape)} has strides "
            f"{tensor.stride()}; call .contiguous() on it"
        )
    return tensor.detach().view(-1)


def _put(place: torch.Tensor, result: torch.Tensor) -> None:
    """Copy the result into its place, as bits: not every device copies every dtype."""
    if place.data_ptr() != result.data_ptr():
        carrier(place, "hccl").copy_(carrier(result.contiguous(), "hccl"))


def _nothing() -> None:
    """What is left to do for a tensor without elements."""
