"""The flags of a run that HF fills a configuration from, by TrainingArguments' names and defaults (5.24)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ds_configs.errors import DsConfigError

AT_LEAST_ONE = ("world_size", "per_device_train_batch_size", "gradient_accumulation_steps")
NOT_NEGATIVE = ("max_grad_norm", "learning_rate", "adam_epsilon", "weight_decay", "warmup_steps")


@dataclass(frozen=True)
class TrainingRun:
    """What ``"auto"`` stands for.

    Raises:
        DsConfigError: a flag has a value that TrainingArguments or DeepSpeed refuses.
    """

    world_size: int
    """Ranks of the whole job."""
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    max_grad_norm: float = 1.0
    learning_rate: float = 5e-5
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: float = 0
    """Steps, or below 1 the share of all steps."""
    max_steps: int = -1
    """Optimizer steps; -1: by epochs."""
    num_train_epochs: float = 3.0
    num_examples: int | None = None
    """Sequences of the training set, from which epochs become steps."""
    dataloader_drop_last: bool = False
    fp16: bool = False
    bf16: bool = False
    fp16_full_eval: bool = False
    bf16_full_eval: bool = False
    save_on_each_node: bool = False

    def __post_init__(self) -> None:
        for name in AT_LEAST_ONE:
            self._check(name, self._whole(name) and getattr(self, name) >= 1, "a whole number, 1 or more")
        for name in NOT_NEGATIVE:
            value = getattr(self, name)
            good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
            self._check(name, good, "a number, 0 or more")
        for name in ("adam_beta1", "adam_beta2"):
            self._check(name, 0 <= getattr(self, name) < 1, "a number from 0 up to 1, 1 excluded")
        good = self.warmup_steps < 1 or float(self.warmup_steps).is_integer()
        self._check("warmup_steps", good, "a whole number of steps, or a share below 1")
        good = self._whole("max_steps") and (self.max_steps == -1 or self.max_steps >= 1)
        self._check("max_steps", good, "at least 1, so that total_num_steps is not 0, or -1 to go by epochs")
        self._check("num_train_epochs", 0 < self.num_train_epochs < math.inf, "a number above 0")
        if self.num_examples is not None:
            good = self._whole("num_examples") and self.num_examples >= 1
            self._check("num_examples", good, "the number of training sequences, 1 or more")
        if self.fp16 and self.bf16:
            raise DsConfigError("fp16 and bf16 are both set, which the Trainer refuses; set one of them")
        if self.fp16_full_eval and self.bf16_full_eval:
            raise DsConfigError(
                "fp16_full_eval and bf16_full_eval are both set, which the Trainer refuses; set one"
            )

    @property
    def train_batch_size(self) -> int:
        """HF's product, which counts every rank as data-parallel."""
        return self.world_size * self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def mixed_precision(self) -> str:
        """What the Trainer tells accelerate: fp16, bf16 or no."""
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "no"

    def total_steps(self) -> int | None:
        """Return the optimizer steps of the run as the Trainer counts them; None where they cannot be known.

        By epochs: accelerate deals whole batches to the ranks in turn and makes up an uneven end from the
        start (``BatchSamplerShard``); with drop_last it leaves the end out.

        Raises:
            DsConfigError: the training set has too few sequences for one step.
        """
        if self.max_steps > 0:
            return self.max_steps
        if self.num_examples is None:
            return None
        rounded = math.floor if self.dataloader_drop_last else math.ceil
        batches = rounded(rounded(self.num_examples / self.per_device_train_batch_size) / self.world_size)
        if batches == 0:
            raise DsConfigError(
                f"{self.num_examples} training sequences fill no batch of {self.per_device_train_batch_size} "
                f"on each of {self.world_size} ranks, so total_num_steps would be 0; give more, or smaller "
                "batches"
            )
        steps = max(math.ceil(batches / self.gradient_accumulation_steps), 1)
        return math.ceil(self.num_train_epochs * steps)

    def warmup(self, total: int | None) -> int | None:
        """Return the steps of warm-up, of ``total``; None where they are a share of what is not known."""
        if self.warmup_steps >= 1 or self.warmup_steps == 0:
            return int(self.warmup_steps)
        return None if total is None else math.ceil(total * self.warmup_steps)

    def _whole(self, name: str) -> bool:
        value = getattr(self, name)
        return isinstance(value, int) and not isinstance(value, bool)

    def _check(self, name: str, good: bool, wanted: str) -> None:
        if not good:
            raise DsConfigError(f"{name} is {getattr(self, name)!r}; give {wanted}")
