"""DeepSpeed's communication on HCCL: its own backend, with every dtype, and groups that can be told apart.

DeepSpeed 0.19.8 has one backend class for all that torch communicates with, `TorchBackend`; its functions
(deepspeed.comm) call it for every collective. This one goes to torch as that does, but for what HCCL refuses
or torch_npu gets wrong, which `collectives` does. Its groups have the default group's timeout, which torch
does not hand on, and say which function of DeepSpeed made them.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.comm.torch import TorchBackend

from npu_plugins.comm import collectives
from npu_plugins.comm.devices import device_types, inherited_timeout
from npu_plugins.comm.groups import GroupOptions, check_timeouts_agree, new_group
from npu_plugins.comm.timeouts import apply_setting, say_contradictions
from npu_plugins.diagnostics import watch_for_hangs

SUM = dist.ReduceOp.SUM


class HcclBackend(TorchBackend):
    """What `deepspeed.comm` calls; made by `deepspeed.init_distributed` where the accelerator is an NPU."""

    def __init__(
        self,
        backend: str | None,
        timeout: timedelta,
        init_method: str | None,
        rank: int = -1,
        world_size: int = -1,
        name: str = "hccl",
    ) -> None:
        """Join the ranks, or take the default group that there is.

        Args:
            backend: of the default group; hccl unless another one is asked for.
            timeout: of the default group.
            init_method: as torch's.
            rank: as torch's.
            world_size: as torch's.
            name: of this object, as DeepSpeed prints it.

        Raises:
            CommError: the ranks meet here, and their timeouts differ.
        """
        before = len(os.environ)
        sentences = apply_setting(os.environ)
        if len(os.environ) > before:  # set by the program; what was set before it, was said at `import torch`
            say_contradictions(sentences, os.environ)
        meets = not dist.is_initialized()
        super().__init__(backend, timeout, init_method, rank, world_size, name)
        self.group_options = GroupOptions()
        """How groups that DeepSpeed makes from now on are made, where `new_group` is not told otherwise."""
        if meets:  # else a rank may be alone in calling this
            check_timeouts_agree(os.environ)
        if multiprocessing.parent_process() is not None:
            # A spawned rank: when torch was imported, nothing told yet that this process would be one.
            watch_for_hangs()

    def all_reduce(self, tensor: Any, op: Any = SUM, group: Any = None, async_op: bool = False) -> Any:
        """See `collectives.all_reduce`."""
        return collectives.all_reduce(tensor, self._reduce_op(op), group, async_op)

    def inference_all_reduce(self, tensor: Any, op: Any, group: Any = None) -> Any:
        """See `collectives.all_reduce`; DeepSpeed's own has a way through the host's memory beside it.

        As in DeepSpeed, one rank alone gets its tensor back at once.
        """
        if dist.get_world_size(group) <= 1:
            return tensor
        return collectives.all_reduce(tensor, self._reduce_op(op), group)

    def all_reduce_coalesced(
        self, tensors: Any, op: Any = SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `collectives.all_reduce_coalesced`."""
        return collectives.all_reduce_coalesced(_listed(tensors), self._reduce_op(op), group, async_op)

    def reduce(self, tensor: Any, dst: int, op: Any = SUM, group: Any = None, async_op: bool = False) -> Any:
        """See `collectives.reduce`."""
        if _off("REDUCE"):
            return super().reduce(tensor, dst, op, group, async_op)
        return collectives.reduce(tensor, dst, self._reduce_op(op), group, async_op)

    def reduce_scatter(
        self, output: Any, input_list: Any, op: Any = SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `collectives.reduce_scatter`."""
        if _off("REDUCE_SCATTER"):
            return super().reduce_scatter(output, input_list, op, group, async_op)
        return collectives.reduce_scatter(output, input_list, self._reduce_op(op), group, async_op)

    def reduce_scatter_tensor(
        self,
        output_tensor: Any,
        input_tensor: Any,
        op: Any = SUM,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        """See `collectives.reduce_scatter_tensor`."""
        return collectives.reduce_scatter_tensor(
            output_tensor, input_tensor, self._reduce_op(op), group, async_op
        )

    def broadcast(self, tensor: Any, src: int, group: Any = None, async_op: bool = False) -> Any:
        """See `collectives.broadcast`."""
        if _off("BROADCAST"):
            return super().broadcast(tensor, src, group, async_op)
        return collectives.broadcast(tensor, src, group, async_op)

    def all_gather(self, tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        """See `collectives.all_gather`."""
        if _off("ALL_GATHER"):
            return super().all_gather(tensor_list, tensor, group, async_op)
        return collectives.all_gather(tensor_list, tensor, group, async_op)

    def all_gather_into_tensor(
        self, output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `collectives.all_gather_into_tensor`."""
        return collectives.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)

    def all_gather_base(
        self, output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
    ) -> Any:
        """The older name of `all_gather_into_tensor`."""
        if _off("ALL_GATHER"):
            return super().all_gather_base(output_tensor, input_tensor, group, async_op)
        return collectives.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)

    def all_gather_coalesced(
        self, output_tensors: Any, input_tensors: Any, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `collectives.all_gather_coalesced`."""
        return collectives.all_gather_coalesced(
            _listed(output_tensors), _listed(input_tensors), group, async_op
        )

    def all_to_all_single(
        self,
        output: Any,
        input: Any,  # DeepSpeed's name
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        """See `collectives.all_to_all_single`."""
        return collectives.all_to_all_single(
            output, input, output_split_sizes, input_split_sizes, group, async_op
        )

    def all_to_all(
        self, output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `collectives.all_to_all`."""
        return collectives.all_to_all(output_tensor_list, input_tensor_list, group, async_op)

    def send(self, tensor: Any, dst: int, group: Any = None, tag: int = 0) -> Any:
        """See `collectives.send`."""
        return collectives.send(tensor, dst, group, tag)

    def recv(self, tensor: Any, src: int | None = None, group: Any = None, tag: int = 0) -> Any:
        """See `collectives.recv`."""
        return collectives.recv(tensor, src, group, tag)

    def isend(self, tensor: Any, dst: int, group: Any = None, tag: int = 0) -> Any:
        """See `collectives.isend`."""
        return collectives.isend(tensor, dst, group, tag)

    def irecv(self, tensor: Any, src: int | None = None, group: Any = None, tag: int = 0) -> Any:
        """See `collectives.irecv`."""
        return collectives.irecv(tensor, src, group, tag)

    def batch_isend_irecv(self, p2p_op_list: Any) -> Any:
        """See `collectives.batch_isend_irecv`; DeepSpeed's list names the functions."""
        return collectives.batch_isend_irecv(
            [
                dist.P2POp(getattr(dist, each.op), each.tensor, each.peer, each.group, each.tag)
                for each in p2p_op_list
            ]
        )

    def gather(
        self, tensor: Any, gather_list: Any = None, dst: int = 0, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `collectives.gather`."""
        return collectives.gather(tensor, gather_list, dst, group, async_op)

    def scatter(
        self, tensor: Any, scatter_list: Any = None, src: int = 0, group: Any = None, async_op: bool = False
    ) -> Any:
        """See `collectives.scatter`."""
        return collectives.scatter(tensor, scatter_list, src, group, async_op)

    def new_group(
        self,
        ranks: Sequence[int] | None,
        options: GroupOptions | None = None,
        description: str | None = None,
    ) -> Any:
        """Make a group; every rank of the world must call this, in one order.

        Args:
            ranks: global ranks; None: all, as in torch.
            options: how the group is made; by default `group_options`. Its timeout is by default that of the
                default group, and not torch's.
            description: what the group is for; by default the name of the function that asks for it.
        """
        options = self.group_options if options is None else options
        ranks = range(dist.get_world_size()) if ranks is None else ranks
        asker = _asker(sys._getframe(1)) if description is None else description
        kinds = device_types(None)
        device = torch.device(next((kind for kind in kinds if kind != "cpu"), kinds[0]))
        return new_group(tuple(ranks), None, options, asker.strip("_"), inherited_timeout(device))


def _asker(frame: FrameType) -> str:
    """The function that asks for a group: that of a frame, or above deepspeed.comm's own new_group."""
    above = frame.f_back if frame.f_code.co_name == "new_group" else None
    return (above or frame).f_code.co_name


def _off(name: str) -> bool:
    """Whether DeepSpeed was told to leave a collective out, which its own methods do.

    Its module of switches is asked for by name: in deepspeed.comm the name ``torch`` is torch itself.
    """
    return bool(getattr(sys.modules[TorchBackend.__module__], f"DS_COMM_{name}_OFF"))


def _listed(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
