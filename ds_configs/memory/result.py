"""MemoryEstimate: a job's memory by term, for the rank that needs most and for each pipeline stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# Terms that live on the NPU but outside of what the allocator hands out as tensors.
UNALLOCATED = ("allocator slack", "HCCL buffers")


@dataclass(frozen=True)
class StageEstimate:
    """One pipeline stage's rank at the moment of its peak."""

    stage: int
    moment: str
    """When the peak is: the part of the step."""
    terms: Mapping[str, int]
    """Bytes on the NPU by term, at that moment."""
    host_terms: Mapping[str, int]
    """Bytes of host memory for this rank, by term."""
    moments: Mapping[str, Mapping[str, int]]
    """Bytes of tensors by term at every moment that could have been the peak."""
    model_states: Mapping[str, int]
    """Parameters, gradients, master weights and optimizer states as the ZeRO paper counts them, in bytes."""

    @property
    def total(self) -> int:
        """Bytes of device memory: tensors, allocator slack and HCCL's buffers."""
        return sum(self.terms.values())

    @property
    def allocated(self) -> int:
        """Bytes of tensors, as ``torch.npu.max_memory_allocated`` counts them."""
        return sum(size for term, size in self.terms.items() if term not in UNALLOCATED)

    @property
    def host(self) -> int:
        """Bytes of host memory."""
        return sum(self.host_terms.values())


@dataclass(frozen=True)
class MemoryEstimate:
    """The estimate of a whole job."""

    stages: tuple[StageEstimate, ...]
    """By pipeline stage."""

    @property
    def worst(self) -> StageEstimate:
        """The stage that needs most device memory."""
        return max(self.stages, key=lambda stage: stage.total)

    @property
    def terms(self) -> Mapping[str, int]:
        """Bytes on the NPU by term, in the stage that needs most."""
        return MappingProxyType(dict(self.worst.terms))

    @property
    def total(self) -> int:
        """Bytes of device memory in the stage that needs most."""
        return self.worst.total

    @property
    def allocated(self) -> int:
        """Bytes of tensors in the stage that needs most."""
        return self.worst.allocated

    @property
    def host(self) -> int:
        """Bytes of host memory of the rank that needs most."""
        return max(stage.host for stage in self.stages)

    def fits(self, capacity: int) -> bool:
        """Say whether every rank stays within ``capacity`` bytes of device memory."""
        return self.total <= capacity
