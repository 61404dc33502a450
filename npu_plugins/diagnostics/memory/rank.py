"""What one rank takes of its device's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

KNOWN = ("parameters", "gradients", "optimizer")
"""Words of what can be counted tensor by tensor."""


ACTIVATIONS, FRAGMENTS = "activations and buffers", "fragments"
"""Of `RankMemory.parts`."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes that a rank takes; those of a device are of all processes on it."""

    rank: int
    host: str
    device: str
    """Such as npu:0, or cpu."""
    place: str
    """On the mesh, such as tp 0, pp 1, dp 0."""
    holds: str
    """Of the model: its layers, embedding, head."""
    total: int
    """Of the device."""
    free: int
    """Of the device, with all processes on it."""
    allocated: int
    """By tensors of this rank, now."""
    reserved: int
    """By this rank's allocator, now."""
    peak: int
    """Most that tensors took, of the run so far unless somebody starts the statistics anew."""
    peak_reserved: int
    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    """States, master weights and ZeRO's partitions."""
    pid: int = 0

    @property
    def used(self) -> int:
        """Of the device, by all processes on it."""
        return self.total - self.free

    @property
    def activations(self) -> int:
        """The peak without what is counted tensor by tensor: activations, and buffers of communication."""
        return max(0, self.peak - self.parameters - self.gradients - self.optimizer)

    @property
    def unused(self) -> int:
        """What the allocator keeps though no tensor needed it at the peak: fragments, and its cache."""
        return max(0, self.peak_reserved - self.peak)

    def parts(self) -> dict[str, int]:
        """Return bytes by what they are for, which add up to what the allocator reserved at its peak."""
        known = {name: getattr(self, name) for name in KNOWN}
        return {**known, ACTIVATIONS: self.activations, FRAGMENTS: self.unused}

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, told: Mapping[str, Any]) -> RankMemory:
        """Return what `plain` described.

        Raises:
            TypeError: it is something else.
        """
        return cls(**told)
