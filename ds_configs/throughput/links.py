"""Seconds of collectives: what a card moves, over the links it has to its peers.

Volumes are those of bandwidth-optimal algorithms (Thakur et al. 2005; Rajbhandari et al. 2020 §7): all-gather
and reduce-scatter move (n−1)/n of the whole tensor a card, an all-reduce twice that. A group that leaves the
fast domain works in two levels, each card's own network adapter taking its share.
"""

from __future__ import annotations

from dataclasses import dataclass

from ds_configs.throughput.compute import Chip


@dataclass(frozen=True)
class Group:
    """``size`` ranks, ``near`` of them in each fast domain."""

    size: int
    near: int

    @property
    def far(self) -> int:
        """Fast domains that the group spans."""
        return -(-self.size // self.near)

    @classmethod
    def of(cls, size: int, stride: int, fast_domain: int) -> Group:
        """Return the group of ``size`` ranks that are ``stride`` apart.

        Rank order is tp fastest, then dp (and ep within it), then pp, so that tp's stride is 1 and dp's is
        tp.
        """
        return cls(size, max(1, min(size, fast_domain // stride)))


def gather_seconds(chip: Chip, group: Group, whole_bytes: float) -> float:
    """Seconds of an all-gather to ``whole_bytes`` on each card, or of a reduce-scatter from them."""
    if group.size == 1:
        return 0.0
    hardware, efficiency = chip.hardware, chip.efficiency
    seconds = 0.0
    if group.near > 1:
        moved = whole_bytes * (group.near - 1) / group.near
        seconds += hardware.link_latency + moved / (hardware.fast_bandwidth(group.near) * efficiency.link)
    if group.far > 1:
        moved = whole_bytes / group.near * (group.far - 1) / group.far
        seconds += hardware.network_latency + moved / (hardware.network_bandwidth * efficiency.network)
    return seconds


def all_reduce_seconds(chip: Chip, group: Group, tensor_bytes: float) -> float:
    """Seconds of an all-reduce of ``tensor_bytes``: a reduce-scatter and an all-gather."""
    return 2 * gather_seconds(chip, group, tensor_bytes)


def all_to_all_seconds(chip: Chip, group: Group, sent_bytes: float) -> float:
    """Seconds in which each card spreads ``sent_bytes`` evenly over the group, itself included."""
    if group.size == 1:
        return 0.0
    hardware, efficiency = chip.hardware, chip.efficiency
    near = sent_bytes * (group.near - 1) / group.size
    far = sent_bytes * (group.size - group.near) / group.size
    seconds = 0.0
    if near:
        seconds += hardware.link_latency + near / (hardware.fast_bandwidth(group.near) * efficiency.link)
    if far:
        seconds += hardware.network_latency + far / (hardware.network_bandwidth * efficiency.network)
    return seconds


def send_seconds(chip: Chip, far: bool, message_bytes: float) -> float:
    """Seconds of one message to one peer, over the network if ``far``."""
    hardware, efficiency = chip.hardware, chip.efficiency
    if far:
        return hardware.network_latency + message_bytes / (hardware.network_bandwidth * efficiency.network)
    return hardware.link_latency + message_bytes / (hardware.peer_bandwidth * efficiency.link)
