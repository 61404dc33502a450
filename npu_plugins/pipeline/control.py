"""What ranks tell each other besides tensors: small numbers and words, over the host, without the device."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.comm import ProcessMesh
from npu_plugins.comm.devices import inherited_timeout


class Control:
    """A second, host-only connection (gloo) of all ranks and of each pipeline.

    The accelerator's process group matches transfers by order and waits for the device; shapes, failures and
    the end of data concern the host alone and must not make it wait.
    """

    def __init__(self, mesh: ProcessMesh, timeout: timedelta | None = None) -> None:
        """Make the groups; every rank of the world must do so together.

        Args:
            mesh: of the job.
            timeout: of what ranks wait for; by default that of the job's default process group.
        """
        self.timeout = timeout or inherited_timeout(mesh.device) or dist.constants.default_pg_timeout
        timeout = self.timeout
        world = list(range(dist.get_world_size()))
        self._world: Any = dist.new_group(world, timeout=timeout, backend="gloo")
        self._pipeline: Any = None
        for ranks in mesh.topology.groups("pp"):
            group = (
                self._world
                if list(ranks) == world
                else dist.new_group(list(ranks), timeout=timeout, backend="gloo")
            )
            if mesh.global_rank in ranks:
                self._pipeline = group

    def worst(self, number: int) -> int:
        """Return the largest of all ranks' numbers."""
        return self.largest([number])[0]

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """Return the largest of all ranks' numbers at each place."""
        values = torch.tensor(list(numbers), dtype=torch.int64)
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._world)
        return values.tolist()

    def texts(self, text: str) -> list[str]:
        """Return every rank's text."""
        return self.everyone(text)

    def everyone(self, value: Any) -> list[Any]:
        """Return the value of every rank of the world, any that pickles."""
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, value, group=self._world)
        return found

    def of_pipeline(self, value: Any) -> list[Any]:
        """Return the value of every rank of this pipeline, any that pickles."""
        found: list[Any] = [None] * dist.get_world_size(self._pipeline)
        dist.all_gather_object(found, value, group=self._pipeline)
        return found

    def shared(self, numbers: Sequence[int], count: int, source: int) -> list[int]:
        """Return the `count` numbers that rank `source` of this pipeline has."""
        if dist.get_rank(self._pipeline) == source:
            values = torch.tensor(list(numbers), dtype=torch.int64)
        else:
            values = torch.empty(count, dtype=torch.int64)
        dist.broadcast(values, group_src=source, group=self._pipeline)
        return values.tolist()

    def send(self, value: Any, peer: int, tag: int) -> list[Any]:
        """Send a value to a rank of this pipeline; return what must be kept and waited for."""
        body = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        length = torch.tensor([body.numel()])
        works = [dist.isend(each, group_dst=peer, group=self._pipeline, tag=tag) for each in (length, body)]
        return [(work, each) for work, each in zip(works, (length, body), strict=True)]

    def receive(self, peer: int, tag: int) -> Any:
        """Return the value that a rank of this pipeline sends under this tag."""
        length = torch.empty(1, dtype=torch.int64)
        dist.recv(length, group_src=peer, group=self._pipeline, tag=tag)
        body = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(body, group_src=peer, group=self._pipeline, tag=tag)
        return pickle.loads(body.numpy().tobytes())
