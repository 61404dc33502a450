"""What a world is made of; sent from the pool to the nursery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_WORLD_SIZE = 8
BACKENDS = (None, "gloo", "hccl", "cpu:gloo,npu:hccl")


@dataclass(frozen=True)
class WorldSpec:
    """A world of `size` ranks.

    backend: of the default process group; None makes ranks without one.
    env: variables set in every rank before it joins.
    group_timeout: seconds, of the default process group's store and collectives.
    directory, address: filled in by the pool: where logs lie and the socket where ranks report.
    """

    size: int
    backend: str | None = "hccl"
    env: Mapping[str, str] = field(default_factory=dict)
    group_timeout: float = 60.0
    directory: str = ""
    address: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_WORLD_SIZE:
            raise ValueError(f"A world has 1 to {MAX_WORLD_SIZE} ranks, not {self.size}.")
        if self.backend not in BACKENDS:
            raise ValueError(f"Backend {self.backend!r} is none of {BACKENDS}.")
        if self.group_timeout <= 0:
            raise ValueError(f"group_timeout is a time in seconds above 0, not {self.group_timeout}.")

    @property
    def needs_npu(self) -> bool:
        """True if its ranks sit on NPUs."""
        return self.backend is not None and "hccl" in self.backend
