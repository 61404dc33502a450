"""What a plan is asked for: a model, cards, and a batch."""

from __future__ import annotations

from dataclasses import dataclass

from ds_configs.errors import DsConfigError
from ds_configs.hardware import Hardware
from ds_configs.memory.job import Attention, Dtype
from ds_configs.models import ModelShape
from ds_configs.parallel import ParallelConfig

MOST_NPUS = 1 << 20
"""More cards than any cluster has: a slip of the keyboard, not a job."""


@dataclass(frozen=True)
class PlanRequest:
    """A model to train on ``npus`` cards, so many sequences of so many tokens in each optimizer step.

    Raises:
        DsConfigError: the numbers cannot be a job; the message says why and what to change.
    """

    shape: ModelShape
    npus: int
    hardware: Hardware
    """The card; its memory and links are the user's own if they were given."""
    seq: int
    """Tokens of a sequence."""
    global_batch: int
    """Sequences of one optimizer step, over all cards."""
    dtype: Dtype = "bf16"
    attention: Attention = "flash"
    margin: float = 0.1
    """Part of a card's memory that is left free: the memory model's own worst error."""
    hccl_buffer: int = 200 << 20
    """HCCL_BUFFSIZE in bytes: each communicator takes two such buffers."""
    today_only: bool = False
    """Whether engines that are still to come are left out."""

    def __post_init__(self) -> None:
        for name in ("npus", "seq", "global_batch", "hccl_buffer"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DsConfigError(f"{name} is {value!r}; give a whole number, 1 or more")
        if self.npus > MOST_NPUS:
            raise DsConfigError(f"npus is {self.npus}; give at most {MOST_NPUS}")
        self.shape.check_job(ParallelConfig(), self.seq)
        if not 0 <= self.margin < 1:
            raise DsConfigError(f"margin is {self.margin!r}; give a part of the memory, such as 0.1")
        node = self.hardware.node_size
        if self.npus > node and self.npus % node:
            raise DsConfigError(
                f"{self.npus} NPUs do not fill nodes of {node}; give up to {node}, or a multiple such as "
                f"{self.npus // node * node}"
            )

    @property
    def capacity(self) -> int:
        """Bytes that a proposal may use on a card."""
        return int(self.hardware.hbm_bytes * (1 - self.margin))

    @property
    def nodes(self) -> int:
        """Hosts of the job."""
        return -(-self.npus // self.hardware.node_size)
