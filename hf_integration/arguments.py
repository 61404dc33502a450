"""Command-line arguments of the training program; every dataclass checks itself when it is built."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transformers import HfArgumentParser, TrainingArguments

from hf_integration.data.arguments import DataArguments
from hf_integration.data.loader import check_sampling
from hf_integration.device import require_device
from hf_integration.errors import TrainingInputError
from hf_integration.models import preset_names

BYTE_TOKENIZER = "bytes"


@dataclass
class ModelArguments:
    """Which model to train and which tokenizer goes with it."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Directory that save_pretrained wrote; training continues from it."}
    )
    config_name: str | None = field(
        default=None,
        metadata={"help": f"Train from scratch at one of these sizes: {', '.join(preset_names())}."},
    )
    tokenizer_name: str | None = field(
        default=None,
        metadata={
            "help": f"Directory of a tokenizer, or {BYTE_TOKENIZER!r}: one token per byte. "
            "Default: the model's own, or bytes with --config_name."
        },
    )

    def __post_init__(self) -> None:
        if (self.model_name_or_path is None) == (self.config_name is None):
            raise TrainingInputError(
                f"give exactly one of --model_name_or_path DIR (got {self.model_name_or_path}) and "
                f"--config_name NAME (got {self.config_name}); names are {', '.join(preset_names())}"
            )
        if self.config_name is not None and self.config_name not in preset_names():
            raise TrainingInputError(
                f"--config_name {self.config_name} is unknown; choose one of {', '.join(preset_names())}"
            )
        if self.model_name_or_path is not None:
            require_file(Path(self.model_name_or_path) / "config.json", "--model_name_or_path")
        if self.tokenizer_name not in (None, BYTE_TOKENIZER):
            require_file(Path(self.tokenizer_name) / "tokenizer_config.json", "--tokenizer_name")


@dataclass
class NpuTrainingArguments(TrainingArguments):
    """The HF Trainer's own arguments with this program's defaults and a check that a device is there."""

    output_dir: str = field(default="outputs", metadata={"help": "Where model, log and plot go."})
    do_train: bool = field(default=True, metadata={"help": "Train; `--do_train false` only evaluates."})
    do_eval: bool = field(default=True, metadata={"help": "Evaluate at the end and report the perplexity."})
    logging_steps: float = field(default=10, metadata={"help": "Steps between two log entries."})
    logging_first_step: bool = field(default=True, metadata={"help": "Log the first step too."})
    save_strategy: str = field(default="no", metadata={"help": "When to save checkpoints to resume from."})

    def __post_init__(self) -> None:
        if self.do_predict:
            raise TrainingInputError("--do_predict is not offered here; use --do_eval for the perplexity")
        if self.deepspeed is not None and not isinstance(self.deepspeed, dict):
            check_deepspeed_file(Path(self.deepspeed))
        # Before the parent's __post_init__, which brings up the process group on whatever device it finds.
        require_device(use_cpu=self.use_cpu, deepspeed=bool(self.deepspeed))
        super().__post_init__()
        check_sampling(self)
        if self.deepspeed:
            keep_model_savable(self.hf_deepspeed_config.config)


def require_file(path: Path, flag: str) -> None:
    """Raise TrainingInputError unless ``path``, which ``flag`` implies, is a file."""
    if not path.is_file():
        raise TrainingInputError(
            f"{flag} {path.parent} is no directory with a {path.name}; give one that save_pretrained wrote"
        )


def check_deepspeed_file(path: Path) -> None:
    """Raise TrainingInputError unless ``path`` is JSON that the HF Trainer can hand to DeepSpeed."""
    if not path.is_file():
        raise TrainingInputError(f"--deepspeed {path} does not exist; `ds-config list` names the presets")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TrainingInputError(
            f"--deepspeed {path} is not the strict JSON that HF needs: {error}"
        ) from error
    if not isinstance(config, dict) or "zero_optimization" not in config:
        raise TrainingInputError(
            f'--deepspeed {path} has no "zero_optimization" section, without which accelerate refuses it; '
            'add {"zero_optimization": {"stage": 0}} for plain data parallelism'
        )
    if "pipeline" in config:
        raise TrainingInputError(
            f'--deepspeed {path} has a "pipeline" section, which the Trainer would pass over and train with '
            "plain data parallelism; use it in a program with a PipelineModule, or remove the section"
        )


def keep_model_savable(config: dict) -> None:
    """Make ZeRO-3 gather whole weights when the model is saved, unless ``config`` already decides that.

    Without it DeepSpeed saves shards, which ``from_pretrained`` cannot load.

    Raises:
        TrainingInputError: ``config`` forbids the gathering.
    """
    zero = config["zero_optimization"]
    names = ("stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")
    if zero.get("stage") != 3:
        return
    if any(zero.get(name) is False for name in names):
        raise TrainingInputError(
            f'"{names[0]}" is false, so from_pretrained could not load the trained model; set it to true'
        )
    if not any(name in zero for name in names):
        zero[names[0]] = True


def parse_arguments(argv: Sequence[str]) -> tuple[ModelArguments, DataArguments, NpuTrainingArguments]:
    """Return the three argument groups read from ``argv`` (without the program's name).

    Raises:
        TrainingInputError: a value is refused; the message says which and why.
        SystemExit: a value has the wrong type (argparse's own message).
    """
    parser = HfArgumentParser((ModelArguments, DataArguments, NpuTrainingArguments))
    # Before any dataclass is built, since building the last one brings up the process group.
    _, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise TrainingInputError(f"unknown arguments {' '.join(unknown)}; --help lists those that exist")
    try:
        model, data, training = parser.parse_args_into_dataclasses(args=list(argv))
    except TrainingInputError:
        raise
    except ValueError as error:
        # transformers' own refusal of a combination of its flags.
        raise TrainingInputError(str(error)) from error
    return model, data, training
