"""MemoryJob: what a training job's memory depends on, besides the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ds_configs.errors import DsConfigError
from ds_configs.models import ModelShape
from ds_configs.parallel import ParallelConfig

Dtype = Literal["fp32", "bf16", "fp16"]
Recomputation = Literal["none", "selective", "full"]
Attention = Literal["flash", "eager"]
OffloadDevice = Literal["none", "cpu", "nvme"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev"]
Kernels = Literal["transformers", "megatron"]

TWO_CHUNKS = ("zb-v", "dualpipev")
"""Schedules that give each rank one chunk of layers going down the V and one coming up."""
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Size of one element."""
CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": ("fp32", "bf16", "fp16"),
    "recomputation": ("none", "selective", "full"),
    "attention": ("flash", "eager"),
    "offload_optimizer": ("none", "cpu", "nvme"),
    "offload_param": ("none", "cpu", "nvme"),
    "schedule": ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev"),
    "kernels": ("transformers", "megatron"),
}


@dataclass(frozen=True)
class Buckets:
    """DeepSpeed's buffers, in elements; the defaults are those of DeepSpeed 0.19.8 (``zero/config.py``).

    ``allgather_bucket_size`` and ``reduce_scatter`` decide no memory: parameters are gathered in place, and a
    bucket is reduced through one flat copy either way.
    """

    reduce: int = 500_000_000
    prefetch: int = 50_000_000
    """ZeRO-3: parameters gathered ahead of their use."""
    persistence: int = 100_000
    """ZeRO-3: a tensor smaller than this is kept whole."""
    max_live: int = 1_000_000_000
    """ZeRO-3: parameters are gathered ahead only while fewer than these are whole."""
    reuse: int = 1_000_000_000
    """ZeRO-3: a gathered parameter that is used again within so many parameters stays whole."""
    sub_group: int = 1_000_000_000
    """ZeRO-3: elements of a rank's partition that are stepped at once."""
    overlap_comm: bool | None = None
    """None: DeepSpeed's default, true under stage 3 only."""
    contiguous_gradients: bool = True

    def __post_init__(self) -> None:
        for name in ("reduce", "max_live", "sub_group"):
            if getattr(self, name) < 1:
                raise DsConfigError(f"the {name} bucket is {getattr(self, name)} elements; give 1 or more")
        for name in ("prefetch", "persistence", "reuse"):
            if getattr(self, name) < 0:
                raise DsConfigError(f"the {name} bucket is {getattr(self, name)} elements; give 0 or more")


@dataclass(frozen=True)
class MemoryJob:
    """One training job as far as memory is concerned.

    Raises:
        DsConfigError: the choices exclude each other, or a number is out of range.
    """

    shape: ModelShape
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    stage: int = 0
    """ZeRO stage."""
    dtype: Dtype = "bf16"
    micro_batch: int = 1
    """Sequences in one forward pass of one rank."""
    sequence: int = 2048
    """Tokens of a sequence."""
    accumulation: int = 1
    """Micro-batches of one optimizer step; under pipelining those that fill the pipeline."""
    recomputation: Recomputation = "none"
    attention: Attention = "flash"
    kernels: Kernels = "transformers"
    """Whose layers: Hugging Face transformers' (unfused operators) or Megatron-LM's (fused ones)."""
    schedule: Schedule = "1f1b"
    chunks: int = 1
    """Model chunks of one rank (interleaved schedules)."""
    offload_optimizer: OffloadDevice = "none"
    offload_param: OffloadDevice = "none"
    optimizer_states: int = 2
    """Values that the optimizer keeps for each parameter: Adam 2, momentum SGD 1, plain SGD 0."""
    gradient_dtype: Dtype | None = None
    """dtype in which gradients accumulate (``data_types.grad_accum_dtype``); None: the model's."""
    buckets: Buckets = field(default_factory=Buckets)
    hccl_buffer: int = 200 << 20
    """HCCL_BUFFSIZE in bytes: each communicator has two buffers of this size."""

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise DsConfigError(f"{name} is {getattr(self, name)!r}; choose among {', '.join(choices)}")
        if self.stage not in (0, 1, 2, 3):
            raise DsConfigError(f"the ZeRO stage is {self.stage!r}; choose 0, 1, 2 or 3")
        for name in ("micro_batch", "sequence", "accumulation", "chunks"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DsConfigError(f"{name} is {value!r}; give a whole number, 1 or more")
        self._check_combination()

    def _check_combination(self) -> None:
        parallel = self.parallel
        if parallel.pp > 1 and self.stage > 1:
            raise DsConfigError(
                f"pp={parallel.pp} with ZeRO stage {self.stage}: DeepSpeed's pipeline takes stage 0 or 1"
            )
        self._check_schedule()
        self._check_recomputation()
        if self.offload_param != "none" and self.stage != 3:
            raise DsConfigError(
                f"offload_param needs ZeRO stage 3, not {self.stage}; DeepSpeed ignores it otherwise"
            )
        if self.offload_optimizer != "none" and self.stage == 0:
            raise DsConfigError(
                "offload_optimizer needs ZeRO stage 1, 2 or 3: stage 0 keeps its states on the NPU"
            )
        if self.offload_optimizer == "nvme" and self.stage != 3:
            raise DsConfigError(f"offload_optimizer to nvme needs ZeRO stage 3, not {self.stage}; use cpu")
        if self.stage == 0 and self.gradient_dtype not in (None, self.dtype):
            raise DsConfigError(
                f"gradients in {self.gradient_dtype} beside {self.dtype} weights need ZeRO stage 1 or more: "
                "DeepSpeed refuses the mix under stage 0"
            )

    def _check_schedule(self) -> None:
        pp, schedule = self.parallel.pp, self.schedule
        self.shape.check_job(self.parallel, self.sequence, 2 if schedule in TWO_CHUNKS else self.chunks)
        if pp == 1 and schedule != "1f1b":
            raise DsConfigError(
                f"schedule {schedule} orders the stages of a pipeline, but pp is 1; set pp > 1, or drop it"
            )
        if (self.chunks > 1) != (schedule == "interleaved"):
            raise DsConfigError(
                f"chunks is {self.chunks} with schedule {schedule}: the interleaved schedule has 2 or more "
                "chunks a rank, and no other a choice; change one of the two"
            )

    def _check_recomputation(self) -> None:
        if self.recomputation != "selective":
            return
        if self.kernels != "megatron":
            raise DsConfigError(
                "selective recomputation is Megatron's, and transformers recomputes whole layers; choose "
                "full, or the kernels of megatron"
            )
        if self.attention != "eager":
            raise DsConfigError(
                "selective recomputation saves the scores of eager attention, and flash attention keeps "
                "none; choose none or full"
            )

    @property
    def mixed(self) -> bool:
        """Whether the optimizer keeps fp32 master weights beside 16-bit ones."""
        return self.dtype != "fp32"

    @property
    def element(self) -> int:
        """Bytes of a parameter, an activation, a gradient."""
        return BYTES[self.dtype]
