"""Tokens per second and memory of every rank, for the Trainer's log."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from typing import Any

import torch
from accelerate.utils import gather
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_integration.device import platform_label

MIB = 1 << 20


class Measurements(TrainerCallback):
    """Collects, wherever an entry is about to be logged, what all ranks have measured since the one before.

    Ranks tell each other in a callback and not in `Trainer.log`, which a script may call on one of them.
    """

    def __init__(self, device: torch.device, replicas_first: bool) -> None:
        """Take the rank's device, and whether this rank's tokens count: one rank of a replica's do."""
        self._device, self._counts = device, replicas_first
        self._tokens = 0
        self._since: float | None = None
        self._found: dict[str, float] = {}

    def count(self, inputs: Mapping[str, Any]) -> None:
        """Add the tokens of a batch, without padding."""
        tokens = inputs.get("attention_mask")
        if tokens is not None and tokens.dim() == 2:
            self._tokens += int(tokens.sum())
        elif isinstance(inputs.get("input_ids"), torch.Tensor):
            self._tokens += inputs["input_ids"].numel()

    def take(self) -> dict[str, float]:
        """Return what was collected for the entry that is being logged, once."""
        found, self._found = self._found, {}
        return found

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Collect before an entry."""
        if control.should_log:
            self._collect()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Collect before an entry at the end of an epoch."""
        if control.should_log:
            self._collect()

    def _collect(self) -> None:
        own = [self._tokens if self._counts else 0, peak_memory(self._device) / MIB]
        ranks = gather(torch.tensor([own], device=self._device)).tolist()
        now, since = time.perf_counter(), self._since
        self._since, self._tokens = now, 0
        self._found = {f"memory_mib_rank{rank}": memory for rank, (_, memory) in enumerate(ranks)}
        if since is not None:  # the first entry's time has the warm-up in it
            speed = sum(tokens for tokens, _ in ranks) / (now - since)
            self._found[f"{platform_label(self._device.type)}_tokens_per_s"] = speed


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that tensors took on ``device`` so far; on the CPU, what the process took."""
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(torch.get_device_module(device).max_memory_allocated(device))
