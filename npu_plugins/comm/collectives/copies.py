"""The collectives that copy, for every dtype, with an explicit group.

They are torch.distributed's, with its arguments; a tensor whose dtype the group's backend does not copy goes
as whole numbers of the same size (`dtypes.carrier`), in the same memory, so that nothing is copied beforehand
and every bit arrives. `group=None` is the default group, as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.comm.collectives.dtypes import COMMON, carrier
from npu_plugins.comm.collectives.work import settle


def backend_for(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> str:
    """Return the name of the backend of `group` for tensors where `tensor` lies; "" if it has none."""
    pairs = (pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return next((backend for kind, backend in pairs if kind == tensor.device.type), "")


def broadcast(
    tensor: torch.Tensor, src: int, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> Any:
    """Copy a tensor from global rank `src` to all ranks of the group."""
    return dist.broadcast(_moved(tensor, group), src, group=group, async_op=async_op)


def all_gather_into_tensor(
    output: torch.Tensor,
    input: torch.Tensor,  # torch's name
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Gather the ranks' tensors one after the other into `output`, of ranks × the elements of `input`."""
    # torch 2.13 renamed it; this package serves torch 2.1 and later.
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    output, input = _all_moved((output, input), group)
    return call(output, input, group=group, async_op=async_op)


def all_gather(
    tensor_list: list[torch.Tensor],
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Gather the ranks' tensors into a list of tensors."""
    sent, *places = _all_moved((tensor, *tensor_list), group)
    return dist.all_gather(places, sent, group=group, async_op=async_op)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,  # torch's name
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Send part i of `input` to rank i of the group, and get its part for this rank as part i of `output`."""
    output, input = _all_moved((output, input), group)
    return dist.all_to_all_single(
        output, input, output_split_sizes, input_split_sizes, group=group, async_op=async_op
    )


def all_to_all(
    output_tensor_list: list[torch.Tensor],
    input_tensor_list: list[torch.Tensor],
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Send tensor i of the inputs to rank i of the group, and get its tensor for this rank into output i."""
    count = len(output_tensor_list)
    moved = _all_moved((*output_tensor_list, *input_tensor_list), group)
    return dist.all_to_all(moved[:count], moved[count:], group=group, async_op=async_op)


def scatter(
    tensor: torch.Tensor,
    scatter_list: list[torch.Tensor] | None = None,
    src: int = 0,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Give each rank of the group one tensor of global rank `src`'s list."""
    place, *sent = _all_moved((tensor, *(scatter_list or [])), group)
    return dist.scatter(
        place, None if scatter_list is None else sent, src=src, group=group, async_op=async_op
    )


def gather(
    tensor: torch.Tensor,
    gather_list: list[torch.Tensor] | None = None,
    dst: int = 0,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Gather the ranks' tensors into the list of global rank `dst`.

    torch_npu 2.13 has no gather for HCCL; there each rank sends its tensor to `dst`, which receives them all
    together.
    """
    sent, *places = _all_moved((tensor, *(gather_list or [])), group)
    if dist.get_rank(group) < 0 or backend_for(tensor, group) != "hccl":
        listed = None if gather_list is None else places
        return dist.gather(sent, listed, dst=dst, group=group, async_op=async_op)
    here, ranks = dist.get_rank(), dist.get_process_group_ranks(group)
    # What torch refuses is refused in its words, so that callers meet one error on every backend.
    if here != dst:
        if places:
            raise ValueError("Argument ``gather_list`` must NOT be specified on non-destination ranks.")
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, dst, group)])
        return settle(works, lambda: None, async_op)
    if len(places) != len(ranks):
        raise ValueError("Argument ``gather_list`` must be specified on destination rank.")
    if any(place.dtype != sent.dtype for place in places):
        raise ValueError("Invalid usage of tensors with different dtypes")
    others = [rank for rank in ranks if rank != here]
    receives = [dist.P2POp(dist.irecv, places[ranks.index(rank)], rank, group) for rank in others]
    works = dist.batch_isend_irecv(receives) if receives else []
    own = places[ranks.index(here)]
    return settle(works, lambda: _copy(own, sent), async_op)


def send(tensor: torch.Tensor, dst: int, group: dist.ProcessGroup | None = None, tag: int = 0) -> None:
    """Send a tensor to global rank `dst`."""
    dist.send(_moved(tensor, group), dst, group=group, tag=tag)


def recv(
    tensor: torch.Tensor, src: int | None = None, group: dist.ProcessGroup | None = None, tag: int = 0
) -> int:
    """Receive a tensor from global rank `src`; returns the sender's rank."""
    return dist.recv(_moved(tensor, group), src, group=group, tag=tag)


def isend(tensor: torch.Tensor, dst: int, group: dist.ProcessGroup | None = None, tag: int = 0) -> Any:
    """Begin to send a tensor to global rank `dst`."""
    return dist.isend(_moved(tensor, group), dst, group=group, tag=tag)


def irecv(
    tensor: torch.Tensor, src: int | None = None, group: dist.ProcessGroup | None = None, tag: int = 0
) -> Any:
    """Begin to receive a tensor from global rank `src`."""
    return dist.irecv(_moved(tensor, group), src, group=group, tag=tag)


def batch_isend_irecv(operations: Sequence[dist.P2POp]) -> list[Any]:
    """Begin several sends and receives together."""
    moved = [
        dist.P2POp(each.op, _moved(each.tensor, each.group), each.peer, each.group, each.tag)
        for each in operations
    ]
    return dist.batch_isend_irecv(moved)


def _moved(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    return _all_moved([tensor], group)[0]


def _all_moved(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup | None) -> list[torch.Tensor]:
    """The tensors of one collective, as its backend copies them.

    Tensors of several dtypes stay as they are, for torch to refuse: seen as the same whole numbers, bits of
    the one would arrive as the other. So do those of a rank outside of the group, which torch warns of.
    """
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 or dtypes <= COMMON or dist.get_rank(group) < 0:
        return list(tensors)
    return [carrier(tensor, backend_for(tensor, group)) for tensor in tensors]


def _copy(place: torch.Tensor, tensor: torch.Tensor) -> None:
    place.copy_(tensor)
