"""Command-line arguments of the training program; every dataclass checks itself when it is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transformers import HfArgumentParser

from hf_integration.data.arguments import DataArguments
from hf_integration.data.loader import check_sampling
from hf_integration.errors import TrainingInputError
from hf_integration.lora import LoraArguments
from hf_integration.models import preset_names
from hf_integration.npu_arguments import NpuTrainingArguments

BYTE_TOKENIZER = "bytes"


@dataclass
class ModelArguments(LoraArguments):
    """Which model to train, or adapters of which, and which tokenizer goes with it."""

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
        super().__post_init__()
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
class ProgramArguments(NpuTrainingArguments):
    """`NpuTrainingArguments` with this program's defaults."""

    output_dir: str = field(default="outputs", metadata={"help": "Where model, log and plot go."})
    do_train: bool = field(default=True, metadata={"help": "Train; `--do_train false` only evaluates."})
    do_eval: bool = field(default=True, metadata={"help": "Evaluate at the end and report the perplexity."})
    logging_steps: float = field(default=10, metadata={"help": "Steps between two log entries."})
    logging_first_step: bool = field(default=True, metadata={"help": "Log the first step too."})
    save_strategy: str = field(default="no", metadata={"help": "When to save checkpoints to resume from."})

    def __post_init__(self) -> None:
        if self.do_predict:
            raise TrainingInputError("--do_predict is not offered here; use --do_eval for the perplexity")
        if self.pipeline_timeline is not None and not self.do_train:
            raise TrainingInputError(
                "--pipeline_timeline measures a training step; leave out --do_train false"
            )
        super().__post_init__()
        check_sampling(self)


def require_file(path: Path, flag: str) -> None:
    """Raise TrainingInputError unless ``path``, which ``flag`` implies, is a file."""
    if not path.is_file():
        raise TrainingInputError(
            f"{flag} {path.parent} is no directory with a {path.name}; give one that save_pretrained wrote"
        )


def parse_arguments(argv: Sequence[str]) -> tuple[ModelArguments, DataArguments, ProgramArguments]:
    """Return the three argument groups read from ``argv`` (without the program's name).

    Raises:
        TrainingInputError: a value is refused; the message says which and why.
        SystemExit: a value has the wrong type (argparse's own message).
    """
    parser = HfArgumentParser((ModelArguments, DataArguments, ProgramArguments))
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
