"""Hardware: the figures of one card and of the links between cards."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from ds_configs.errors import DsConfigError


@dataclass(frozen=True)
class Figure:
    """One published number."""

    value: float
    unit: str
    source: str
    """Where it was published, or the words "no public figure found" and what was assumed instead."""


@dataclass(frozen=True)
class Hardware:
    """One kind of card in nodes of one kind; bandwidths are a card's, in one direction.

    Raises:
        DsConfigError: a figure is not positive, or a fast domain is smaller than a node.
    """

    name: str
    title: str
    accelerator: str
    """``npu`` or ``gpu``: which fused operators may be assumed."""
    peak_flops: float
    """FLOP/s in bf16 or fp16, dense."""
    hbm_bytes: float
    """Memory of a card in bytes."""
    hbm_bandwidth: float
    """Bytes/s."""
    node_size: int
    """Cards that one host drives."""
    fast_domain: int
    """Cards that the fast links join: a node, or a whole SuperPoD."""
    link_bandwidth: float
    """Bytes/s over the fast links to all peers together."""
    peer_bandwidth: float
    """Bytes/s over the fast links to one peer: all of it behind a switch, one link in a full mesh."""
    link_latency: float
    """Seconds to start a collective over the fast links."""
    network_bandwidth: float
    """Bytes/s between fast domains (RoCE, InfiniBand)."""
    network_latency: float
    """Seconds to start a collective between fast domains."""
    host_bandwidth: float
    """Bytes/s between a card and its host's memory."""
    host_memory_bandwidth: float
    """Bytes/s of host memory, a card's share."""
    nvme_bandwidth: float
    """Bytes/s of the host's NVMe drives, a card's share."""
    host_bytes: float
    """Host memory in bytes, a card's share."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise DsConfigError(f"{field.name} of {self.name} is {value!r}; give a number above zero")
        if self.peer_bandwidth > self.link_bandwidth:
            raise DsConfigError(
                f"{self.name} reaches one peer at {self.peer_bandwidth / 1e9:g} GB/s but all of them at "
                f"{self.link_bandwidth / 1e9:g} GB/s; one peer cannot be reached faster than all"
            )

    def fast_bandwidth(self, ranks: int) -> float:
        """Return the bytes/s at which a card exchanges data with the others of ``ranks`` in a fast domain.

        In a full mesh only the links to members of the group carry its traffic: two cards of a 910B node
        reach 28 GB/s, all eight 196 GB/s. Behind a switch the group's size does not matter.
        """
        return min(self.link_bandwidth, self.peer_bandwidth * max(1, ranks - 1))

    def with_figures(self, **figures: float | None) -> Hardware:
        """Return a copy with the figures that are not None replaced, such as a user's own link speeds.

        A ``link_bandwidth`` alone scales ``peer_bandwidth`` with it: the topology stays.

        Raises:
            DsConfigError: a figure is not positive.
        """
        given = {name: value for name, value in figures.items() if value is not None}
        link = given.get("link_bandwidth")
        if link is not None and "peer_bandwidth" not in given:
            given["peer_bandwidth"] = self.peer_bandwidth * link / self.link_bandwidth
        return replace(self, **given)  # type: ignore[arg-type]
