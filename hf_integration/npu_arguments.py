"""`NpuTrainingArguments`: the HF Trainer's arguments and how the model is divided among the ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from ds_configs.parallel import ParallelConfig
from hf_integration.accelerate_settings import (
    SAVES_WHOLE_MODEL,
    check_launch,
    hide_deepspeed_from_accelerate,
    launched_config,
    launched_config_file,
    launched_precision,
    launched_with_deepspeed,
)
from hf_integration.checks.arguments import CheckArguments
from hf_integration.device import require_device
from hf_integration.errors import TrainingInputError
from hf_integration.parallel_settings import ParallelFlags, ParallelSettings, parallel_settings
from hf_integration.preflight import PreflightArguments, TrainingPreflight
from hf_integration.reporting import check_reports
from hf_integration.timeline import PICTURE_NAME, TRACE_NAME
from hf_integration.timeouts import one_timeout
from hf_integration.unsupported import check_arguments
from npu_plugins.comm.timeouts import say_contradictions

GATHER_NAMES = ("stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")


@dataclass
class NpuTrainingArguments(CheckArguments, PreflightArguments, TrainingArguments):
    """`TrainingArguments` with tensor and pipeline parallelism.

    Degrees come from the flags or from ``ds_config`` (``tensor_parallel.autotp_size``, ``pipeline.stages``),
    flags first; without ``deepspeed``, what ``accelerate launch`` has of DeepSpeed stands for ``ds_config``.
    What is left of the ranks are replicas: the batch of a step is ``per_device_train_batch_size`` ×
    ``gradient_accumulation_steps`` × replicas, and a pipeline's micro-batches are those that the gradient is
    accumulated over.

    Raises:
        TrainingInputError: the degrees do not divide the ranks, no device is there, or something asked for
            cannot be done with a divided model.
    """

    tensor_model_parallel_size: int | None = field(
        default=None, metadata={"help": "Ranks that share each matrix. Default: ds_config's, else 1."}
    )
    pipeline_model_parallel_size: int | None = field(
        default=None,
        metadata={"help": "Ranks that the layers are divided into. Default: ds_config's, else 1."},
    )
    zero_stage: int | None = field(
        default=None, metadata={"help": "ZeRO stage, in place of ds_config's zero_optimization.stage."}
    )
    pipeline_schedule: str | None = field(
        default=None,
        metadata={
            "help": "gpipe, 1f1b, interleaved, zb-h1, zb-v or dualpipe-v. Default: ds_config's, else 1f1b."
        },
    )
    virtual_stages: int | None = field(
        default=None, metadata={"help": "Pipeline stages on each rank, where the schedule leaves a choice."}
    )
    recomputation: str | None = field(
        default=None,
        metadata={
            "help": "Pipeline layers recomputed in the backward pass: none, full, or how many together."
        },
    )
    pipeline_timeline: int | None = field(
        default=None,
        metadata={
            "help": "Optimizer step whose pipeline timeline is measured: "
            f"{PICTURE_NAME}, and {TRACE_NAME} for chrome://tracing, in output_dir."
        },
    )

    resume_from_checkpoint: str | None = field(
        default=None,
        metadata={
            "help": "Checkpoint to go on from; without a value, the newest good one in output_dir.",
            "nargs": "?",
            "const": True,
        },
    )
    allow_layout_change: bool = field(
        default=False,
        metadata={"help": "Go on from a checkpoint of other degrees (tensor, pipeline, data) or ZeRO stage."},
    )
    save_on_sigterm: bool = field(
        default=True,
        metadata={"help": "On SIGTERM, save after the step in progress, on all ranks, and end training."},
    )
    dry_run: bool = field(
        default=False,
        metadata={
            "help": "Print mesh, layers and memory of each rank, and the configuration; train nothing."
        },
    )

    def __post_init__(self) -> None:
        # transformers' name for it, whose ranks would not agree on a step.
        if self.enable_jit_checkpoint:  # type: ignore[has-type]
            self.save_on_sigterm, self.enable_jit_checkpoint = True, False
        config = self._read_config()
        check_precision(config or {}, fp16=self.fp16, bf16=self.bf16)
        self.parallel = self._read_parallel(config)
        divides = self.parallel.divides
        if divides:
            self._take_over_launch()
        given: Any = self.deepspeed  # type: ignore[has-type]
        # Before the parent's __post_init__, which brings up the process group on whatever device it finds.
        self.parallel_config: ParallelConfig = self.parallel.degrees(self.ranks_of_job())
        # Of a divided model accelerate is not to know DeepSpeed: it would count every rank as a replica.
        hidden = divides or self.dry_run
        self.use_cpu: bool = self.use_cpu or self.dry_run
        by_config = bool(given or self.parallel.config or launched_with_deepspeed())
        require_device(use_cpu=self.use_cpu, deepspeed=by_config and not hidden)
        self.deepspeed = None if hidden else self.parallel.config or given
        if hidden:
            hide_deepspeed_from_accelerate()
        # The ranks meet before it as well, so that a missing one is named and not waited for by torch.
        flight = TrainingPreflight(self.parallel_config, self.use_cpu) if self.wants_preflight() else None
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            given_timeout: int = self.ddp_timeout  # type: ignore[has-type]
            self.ddp_timeout, sentences = one_timeout(given_timeout, os.environ)
            say_contradictions(sentences, os.environ)
        super().__post_init__()
        check_reports(self.report_to)
        if not self.dry_run:
            self.check_the_checks(self.world_size)
        self.deepspeed = given if hidden else self.deepspeed
        if divides:
            check_arguments(self)
        elif self.deepspeed and not hidden:
            keep_model_savable(self.hf_deepspeed_config.config)
        elif self.deepspeed_plugin is not None:  # of accelerate launch
            if SAVES_WHOLE_MODEL not in os.environ:  # accelerate takes that for a false
                self.deepspeed_plugin.deepspeed_config["zero_optimization"].pop(GATHER_NAMES[0], None)
            keep_model_savable(self.deepspeed_plugin.deepspeed_config)
        if flight is not None:
            flight.finish(self, config)

    def _read_config(self) -> Mapping[str, Any] | None:
        given = self.deepspeed or launched_config_file()
        if given:
            return read_deepspeed_config(given)
        return launched_config() if launched_with_deepspeed() else None

    def _read_parallel(self, config: Mapping[str, Any] | None) -> ParallelSettings:
        flags = ParallelFlags(
            self.tensor_model_parallel_size,
            self.pipeline_model_parallel_size,
            self.zero_stage,
            self.pipeline_schedule,
            self.virtual_stages,
            _whole_number(self.recomputation),
            self.pipeline_timeline,
            str(Path(self.output_dir or "trainer_output") / TRACE_NAME),  # the parent's own default
        )
        return parallel_settings(flags, config)

    def _take_over_launch(self) -> None:
        """Do, or refuse, what accelerate's launcher asks for, which accelerate is not to do here."""
        check_launch()
        precision = launched_precision()
        if precision and not (self.bf16 or self.fp16):
            setattr(self, precision, True)

    def ranks_of_job(self) -> int:
        """Return the number of ranks that the launcher started; in a dry run without one, of one replica."""
        replica = self.parallel.tp * self.parallel.pp if self.dry_run else 1
        return int(os.environ.get("WORLD_SIZE") or replica)

    @property
    def place_model_on_device(self) -> bool | None:
        """Whether the Trainer moves the whole model to the device; not where a rank holds a part of it."""
        return False if self.parallel.divides else super().place_model_on_device


def _whole_number(text: str | int | None) -> str | int | None:
    return int(text) if isinstance(text, str) and text.isdigit() else text


def read_deepspeed_config(given: Any) -> Mapping[str, Any]:
    """Return the DeepSpeed configuration that ``--deepspeed`` names, or that a script gives as a dict.

    Args:
        given: a path, or the dict.

    Raises:
        TrainingInputError: it is no file with the JSON that the HF Trainer can hand to DeepSpeed.
    """
    if isinstance(given, dict):
        config, name = given, "deepspeed=…"
    else:
        path, name = Path(given), f"--deepspeed {given}"
        if not path.is_file():
            raise TrainingInputError(f"{name} does not exist; `ds-config list` names the presets")
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise TrainingInputError(f"{name} is not the strict JSON that HF needs: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("zero_optimization"), dict):
        raise TrainingInputError(
            f'{name} has no "zero_optimization" section, without which accelerate refuses it; '
            'add {"zero_optimization": {"stage": 0}} for plain data parallelism'
        )
    return config


def check_precision(config: Mapping[str, Any], *, fp16: bool, bf16: bool) -> None:
    """Refuse flags that ask for one half precision where the DeepSpeed configuration has the other one.

    Raises:
        TrainingInputError: with both, and the mend.
    """
    for flag, given, other in (("bf16", bf16, "fp16"), ("fp16", fp16, "bf16")):
        section = config.get(other)
        if given and isinstance(section, Mapping) and section.get("enabled") is True:
            raise TrainingInputError(
                f'--{flag} is given but {other}.enabled is true in the DeepSpeed configuration; write "auto" '
                f"there, or give --{other}"
            )


def keep_model_savable(config: dict[str, Any]) -> None:
    """Make ZeRO-3 gather whole weights when the model is saved, unless ``config`` already decides that.

    Without it DeepSpeed saves shards, which ``from_pretrained`` cannot load.

    Raises:
        TrainingInputError: ``config`` forbids the gathering.
    """
    zero = config["zero_optimization"]
    if zero.get("stage") != 3:
        return
    if any(zero.get(name) is False for name in GATHER_NAMES):
        raise TrainingInputError(
            f'"{GATHER_NAMES[0]}" (zero3_save_16bit_model to accelerate launch) is false, so from_pretrained '
            "could not load the trained model; set it to true"
        )
    if not any(name in zero for name in GATHER_NAMES):
        zero[GATHER_NAMES[0]] = True
