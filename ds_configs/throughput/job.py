"""TrainingJob: all that decides how long a step takes, except the hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ds_configs.errors import DsConfigError
from ds_configs.models import ModelShape
from ds_configs.parallel import ParallelConfig

Recomputation = Literal["none", "selective", "full"]
"""What is computed again in the backward pass: nothing, the core of attention (Korthikanti et al. 2022,
arXiv 2205.05198 §5), or each whole layer."""
Attention = Literal["flash", "eager"]
"""Whether scores stay on the chip (Dao et al. 2022, arXiv 2205.14135) or are written to memory."""
Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"]
Offload = Literal["none", "cpu", "nvme"]


@dataclass(frozen=True)
class TrainingJob:
    """One training configuration of a model.

    Raises:
        DsConfigError: the parts contradict each other; the message says which and what to change.
    """

    shape: ModelShape
    parallel: ParallelConfig
    seq: int
    """Tokens of a sequence."""
    micro_batch: int
    """Sequences that a rank takes through the model at once."""
    global_batch: int
    """Sequences of one optimizer step, over all ranks."""
    stage: int = 0
    """ZeRO stage (Rajbhandari et al. 2020, arXiv 1910.02054 §5)."""
    recomputation: Recomputation = "none"
    attention: Attention = "flash"
    schedule: Schedule = "1f1b"
    virtual_stages: int = 1
    """Chunks of layers a rank holds under the interleaved schedule (Narayanan et al. 2021 §2.2.2)."""
    fused_tp: bool = False
    """Whether matmuls and the tensor-parallel communication are fused (MC2), which hides a part of it."""
    vocab_parallel: bool = True
    """Whether tp ranks divide the vocabulary of the logits, as Megatron does, and DeepSpeed's AutoTP where
    the output layer is not tied to the embedding."""
    overlap_dp: bool = False
    """Whether gradients are reduced, and ZeRO-3's parameters gathered, beside the computation."""
    element_bytes: int = 2
    """Bytes of a parameter and of an activation: 2 for bf16 and fp16, 4 for fp32."""
    gradient_bytes: int = 2
    """Bytes of a gradient as it is communicated: 2 in DeepSpeed with bf16, 4 in Megatron."""
    offload_optimizer: Offload = "none"
    offload_param: Offload = "none"

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_degrees()
        self._check_batch()
        self._check_zero()

    @property
    def micro_batches(self) -> int:
        """Micro-batches that one rank runs in a step."""
        return self.global_batch // (self.parallel.dp * self.micro_batch)

    @property
    def vocab_tp(self) -> int:
        """Ranks that divide the vocabulary."""
        return self.parallel.tp if self.vocab_parallel else 1

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.seq * self.micro_batch

    def _check_numbers(self) -> None:
        for name in ("seq", "micro_batch", "global_batch", "virtual_stages"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DsConfigError(f"{name} is {value!r}; give a whole number, 1 or more")
        for name, kind in (
            ("recomputation", Recomputation),
            ("attention", Attention),
            ("schedule", Schedule),
            ("offload_optimizer", Offload),
            ("offload_param", Offload),
        ):
            if getattr(self, name) not in get_args(kind):
                raise DsConfigError(
                    f"{name} is {getattr(self, name)!r}; choose one of {', '.join(get_args(kind))}"
                )

    def _check_degrees(self) -> None:
        parallel = self.parallel
        self.shape.check_job(parallel, self.seq, self.virtual_stages)
        if self.virtual_stages > 1 and (self.schedule != "interleaved" or parallel.pp == 1):
            raise DsConfigError(
                f"virtual_stages is {self.virtual_stages}, which only the interleaved schedule with pp > 1 "
                f"uses (here {self.schedule}, pp={parallel.pp}); set it to 1"
            )

    def _check_batch(self) -> None:
        ranks = self.parallel.dp * self.micro_batch
        if self.global_batch % ranks:
            raise DsConfigError(
                f"a global batch of {self.global_batch} is no multiple of dp {self.parallel.dp} × "
                f"micro-batch {self.micro_batch} = {ranks}; choose a multiple"
            )

    def _check_zero(self) -> None:
        if self.stage not in (0, 1, 2, 3):
            raise DsConfigError(f"ZeRO stage is {self.stage!r}; choose 0, 1, 2 or 3")
        if self.parallel.pp > 1 and self.stage > 1:
            raise DsConfigError(
                f"pp={self.parallel.pp} works with ZeRO stage 0 or 1, not {self.stage}: every micro-batch "
                "would reduce or gather again; lower the stage or set pp to 1"
            )
        if self.offload_param != "none" and self.stage != 3:
            raise DsConfigError(
                f"offload_param needs ZeRO stage 3, not {self.stage}; DeepSpeed ignores it in silence"
            )
        if self.offload_optimizer != "none" and self.stage == 0:
            raise DsConfigError("offload_optimizer needs ZeRO stage 1, 2 or 3, not 0; raise the stage")
