"""Which process group a layer uses, and whether sizes divide over it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from npu_plugins.tensor_parallel.errors import TensorParallelError


def size_of(group: dist.ProcessGroup | None) -> int:
    """Ranks of the group; 1 for None, which is what a mesh gives for an axis of one rank."""
    return 1 if group is None else group.size()


def rank_of(group: dist.ProcessGroup | None) -> int:
    """Own rank within the group; 0 for None."""
    return 0 if group is None else group.rank()


def choose_group(
    owner: str, tp_size: int | None, group: dist.ProcessGroup | None
) -> dist.ProcessGroup | None:
    """The group that a layer divides itself over.

    A group that is passed serves. With `tp_size` alone, as short examples write it, the default process group
    serves if it has that many ranks. None stands for one rank: no communication at all.

    Args:
        owner: the layer, for the message.
        tp_size: ranks that the layer is to be divided over, or None: as many as the group has.
        group: the process group of the tensor-parallel axis.

    Raises:
        TensorParallelError: the sizes disagree, or `tp_size` alone does not name one group.
    """
    if tp_size is not None and (isinstance(tp_size, bool) or not isinstance(tp_size, int) or tp_size < 1):
        raise TensorParallelError(f"{owner}: tp_size is {tp_size!r}; give a whole number of ranks, 1 or more")
    if group is not None:
        if tp_size not in (None, group.size()):
            raise TensorParallelError(
                f"{owner}: tp_size is {tp_size}, but the group passed has {group.size()} ranks; "
                f"leave tp_size out or pass the group of {tp_size} ranks"
            )
        return group if group.size() > 1 else None
    if tp_size in (None, 1):
        return None
    if not dist.is_initialized():
        raise TensorParallelError(
            f"{owner}: tp_size is {tp_size}, but there is no process group; start {tp_size} ranks and call "
            "torch.distributed.init_process_group, or pass tp_size=1"
        )
    world = dist.get_world_size()
    if world != tp_size:
        raise TensorParallelError(
            f"{owner}: tp_size is {tp_size}, but the default process group has {world} ranks, so which of "
            "them share the layer is not clear; pass group=mesh.group('tp')"
        )
    return dist.group.WORLD


def divide(owner: str, name: str, length: int, ranks: int) -> int:
    """`length` / `ranks`, which must come out even.

    Raises:
        TensorParallelError: it does not.
    """
    if length < 1 or length % ranks:
        fitting = [d for d in range(1, 65) if length > 0 and length % d == 0]
        raise TensorParallelError(
            f"{owner}: {name} {length} cannot be divided over {ranks} tensor-parallel ranks; change {name}, "
            f"or choose a tp that divides it ({', '.join(map(str, fitting)) or 'none does'})"
        )
    return length // ranks


def check_group_serves(owner: str, group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Refuse a group whose backend cannot move tensors of `device`.

    Raises:
        TensorParallelError: the group has no backend for the device's type.
    """
    if group is None or device.type == "meta":
        return
    served = {pair.partition(":")[0]: pair for pair in dist.get_backend_config(group).split(",")}
    if device.type not in served:
        raise TensorParallelError(
            f"{owner}: its tensors are on {device}, but the group passed moves data between devices of "
            f"another type ({', '.join(served.values())}); move module and inputs there, or make the group "
            f"with a backend for {device.type}"
        )
