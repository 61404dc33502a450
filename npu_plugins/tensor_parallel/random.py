"""Random numbers that are the same on all ranks where tensors are replicated, and different where sharded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.groups import rank_of


class RandomStreams:
    """The random streams of one device on one rank.

    The device's default generator is the *replicated* stream: seeded alike on all ranks of the group, it
    draws the same dropout mask for a replicated tensor on each of them. Within `sharded()` the default
    generator is another one on every rank, for tensors of which each rank holds a part.

    A sharded stream has no state of its own to save. It is seeded, whenever it begins, from the replicated
    stream at that moment and the rank, and the replicated stream then moves on by one number. So whatever
    restores the default generator (torch's and DeepSpeed's activation checkpointing, a checkpoint of the
    generator's state) restores both, and a forward pass that is run again draws what it drew before.

    Args:
        group: the tensor-parallel group, None for one rank.
        device: whose default generator is meant.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device | str) -> None:
        self.group, self.device = group, torch.device(device)
        self._outside: torch.Tensor | None = None
        """The replicated stream, while the default generator is the rank's own."""

    def __deepcopy__(self, memo: dict[int, Any]) -> RandomStreams:
        """Return streams of the same group: a copied model is still divided over it."""
        return RandomStreams(self.group, self.device)

    def seed(self, seed: int) -> None:
        """Start the replicated stream: one number for all ranks of the group (another for each replica)."""
        _seed(self.device, seed)

    @contextmanager
    def sharded(self) -> Iterator[None]:
        """Within: random numbers are this rank's own."""
        own = _mix(_state(self.device), rank_of(self.group))
        torch.rand(1, device=self.device)  # the next sharded stream must be another one
        before, nested = _state(self.device), self._outside is not None
        self._outside = self._outside if nested else before
        _seed(self.device, own)
        try:
            yield
        finally:
            if not nested:
                before, self._outside = self._outside, None  # `replicated` may have moved it on
            _set_state(self.device, before)

    @contextmanager
    def replicated(self) -> Iterator[None]:
        """Within, also within `sharded()`: random numbers are the same on all ranks of the group."""
        if self._outside is None:
            yield
            return
        own, outside = _state(self.device), self._outside
        _set_state(self.device, outside)
        self._outside = None
        try:
            yield
        finally:
            self._outside = _state(self.device)
            _set_state(self.device, own)

    def check(self) -> None:
        """Refuse ranks whose replicated streams differ (a collective).

        Raises:
            TensorParallelError: the generators of the group's ranks are not in the same state.
        """
        if self.group is None:
            return
        states: list[int] = [0] * self.group.size()
        dist.all_gather_object(states, _mix(_state(self.device), 0), group=self.group)
        if len(set(states)) > 1:
            differing = ", ".join(str(rank) for rank, state in enumerate(states) if state != states[0])
            raise TensorParallelError(
                f"The default generators of {self.device} differ on ranks {differing} of the tensor-parallel "
                "group from that of rank 0, so replicated tensors would get different dropout; call seed() "
                "with one number on all of them, and draw ranks' own numbers within sharded()"
            )


class ShardedDropout(nn.Module):
    """Dropout of a tensor of which each rank holds a part: other elements are dropped on every rank.

    Args:
        p: probability of an element to be zeroed.
        streams: the random streams of the tensors' device.
    """

    def __init__(self, p: float, streams: RandomStreams) -> None:
        super().__init__()
        _check_probability(type(self).__name__, p)
        self.p, self.streams = p, streams

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Zero elements of `x`, of any shape, and scale up the others, while training."""
        if not self.training or self.p == 0:
            return x
        with self.streams.sharded():
            return F.dropout(x, self.p)


class ReplicatedDropout(nn.Module):
    """Dropout of a tensor that all ranks have: the same elements are dropped, wherever in the model it is.

    Args:
        p: probability of an element to be zeroed.
        streams: the random streams of the tensors' device.
    """

    def __init__(self, p: float, streams: RandomStreams) -> None:
        super().__init__()
        _check_probability(type(self).__name__, p)
        self.p, self.streams = p, streams

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Zero elements of `x`, of any shape, and scale up the others, while training."""
        if not self.training or self.p == 0:
            return x
        with self.streams.replicated():
            return F.dropout(x, self.p)


def _check_probability(owner: str, p: float) -> None:
    if not 0 <= p <= 1:
        raise TensorParallelError(f"{owner}: p is {p}; give a probability, 0 to 1")


def _mix(state: torch.Tensor, rank: int) -> int:
    """A seed that any change of `state` or `rank` changes."""
    digest = hashlib.blake2b(state.numpy().tobytes() + rank.to_bytes(4, "big"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # seeds are below 2⁶³ on every device


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)


def _state(device: torch.device) -> torch.Tensor:
    """The state of the default generator, bytes on the CPU; a device is not waited for."""
    return torch.get_rng_state() if device.type == "cpu" else _module(device).get_rng_state(device)


def _set_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        _module(device).set_rng_state(state, device)


def _seed(device: torch.device, seed: int) -> None:
    """Seed the default generator of this one device (torch.manual_seed would seed all)."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
        return
    with _module(device).device(device):
        _module(device).manual_seed(seed)
