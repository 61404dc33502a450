"""The HF Trainer with what this program's log holds besides: nats per byte, tokens per second, perplexity."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_integration.data import Replica, TrainingData
from hf_integration.data.loader import replica_loader
from hf_integration.deepspeed_stage0 import CountFromFirstStep, scale_gradients
from hf_integration.errors import TrainingInputError
from hf_integration.npu_trainer import NpuTrainer


class CausalLMTrainer(NpuTrainer):
    """`NpuTrainer` that writes every log entry, extended, to a JSON-lines file as soon as it exists.

    A training entry gains ``nats_per_byte`` and ``<platform>_tokens_per_s``, over all ranks and since the
    entry before; the name says on what, so that a simulator's speed is not taken for a card's. Rows of unlike
    length count as the average one, without padding. An evaluation entry gains ``eval_perplexity`` (per
    token) and ``eval_nats_per_byte``. Losses of records are per token of their answers, never per byte.

    Every replica reads its own share of each batch (`ReplicaBatchSampler`).
    """

    def __init__(self, *, data: TrainingData, log_file: Path, platform: str, **kwargs: Any) -> None:
        super().__init__(
            train_dataset=data.train,
            eval_dataset=data.evaluation,
            data_collator=data.collator,
            callbacks=[LogLastStep(), CountFromFirstStep()],
            **kwargs,
        )
        self._data = data
        self._log_file = log_file
        self._speed_key = speed_key(platform)
        self._last_log: tuple[float, int] | None = None
        starts_afresh = self.args.do_train and not self.args.resume_from_checkpoint
        if self.is_world_process_zero():
            log_file.parent.mkdir(parents=True, exist_ok=True)
            # A resumed or evaluating run goes on in the log that is there.
            log_file.open("w" if starts_afresh else "a", encoding="utf-8").close()

    @property
    def replica(self) -> Replica:
        """Which replica this rank belongs to; without a mesh each rank is one."""
        if self.mesh is not None:
            return Replica.of(self.mesh)
        ranks = self.get_tp_size()
        return Replica(self.args.process_index // ranks, self.args.world_size // ranks)

    def get_train_dataloader(self) -> DataLoader:
        """Return the loader of this replica's batches.

        Raises:
            TrainingInputError: a replica has no sample in the last batch of an epoch, and its loss is divided
                by their number.
        """
        loader = replica_loader(self.args, self.train_dataset, self.data_collator, self.replica)
        over_all = self.model_accepts_loss_kwargs and self.args.average_tokens_across_devices
        if loader.batch_sampler.leaves_one_empty and not over_all:
            reason = "--average_tokens_across_devices is false"
            if not self.model_accepts_loss_kwargs:
                reason = f"{type(self.model).__name__} takes no num_items_in_batch"
            raise TrainingInputError(
                f"each replica averages its loss by itself, since {reason}, and of {self.replica.size} one "
                "would have no sample in the last batch of an epoch; give --dataloader_drop_last"
            )
        return loader

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Return the Trainer's own loss, with its gradient scaled where DeepSpeed forgets to."""
        result = super().compute_loss(model, inputs, *args, **kwargs)
        # Evaluation asks for the outputs too and has no gradient. Of a divided model the accelerator does it.
        if isinstance(result, torch.Tensor) and not self.parallel.divides:
            scale_gradients(result, model)
        return result

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Extend ``logs``, hand them to the Trainer's own log and append them to the log file."""
        density = self._data.tokens_per_byte
        if "loss" in logs:
            if density is not None:
                logs["nats_per_byte"] = logs["loss"] * density
            logs.update(self._speed())
        if "eval_loss" in logs:
            logs["eval_perplexity"] = perplexity(logs["eval_loss"])
            if density is not None:
                logs["eval_nats_per_byte"] = logs["eval_loss"] * density
        super().log(logs, start_time)
        if self.is_world_process_zero():
            with self._log_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.state.log_history[-1]) + "\n")

    def _speed(self) -> dict[str, float]:
        """Return the speed since the last training entry; nothing for the first, which has warm-up."""
        now, before = time.perf_counter(), self._last_log
        self._last_log = (now, self.state.global_step)
        if before is None or self.state.global_step == before[1]:
            return {}
        steps = self.state.global_step - before[1]
        per_rank = self.args.train_batch_size * self.args.gradient_accumulation_steps
        rows = steps * self.replica.size * per_rank
        return {self._speed_key: rows * self._data.tokens_per_row / (now - before[0])}


class LogLastStep(TrainerCallback):
    """Logs the last step too, whatever ``logging_steps`` is, so that a log ends with the final loss."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Ask for a log entry at the last step."""
        if state.global_step >= state.max_steps:
            control.should_log = True
        return control


def speed_key(platform: str) -> str:
    """Return the name in the log of the speed on ``platform``, in tokens a second."""
    return f"{platform}_tokens_per_s"


def perplexity(loss: float) -> float:
    """Return e to the ``loss`` (nats a token), infinity where a float cannot hold it."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
