"""Command-line arguments that say what to train on; they check themselves when they are built."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hf_integration.errors import TrainingInputError

PAD_MULTIPLE = 8


@dataclass
class DataArguments:
    """What text to train on and how it is cut into sequences."""

    task: Literal["pretrain", "sft"] = field(
        default="pretrain",
        metadata={
            "help": "pretrain: predict every token of a text. sft: predict the answers in JSON records with "
            '"messages" (a conversation), or "prompt" and "completion", or --text_column (all of it).'
        },
    )
    train_file: str | None = field(
        default=None,
        metadata={
            "help": "Text file, .json/.jsonl file or directory of them; sft reads .json/.jsonl, one record a "
            "line. Default: the source code of Python's standard library (pretrain)."
        },
    )
    validation_file: str | None = field(
        default=None, metadata={"help": "The same for evaluation. Default: the end of the training text."}
    )
    text_column: str = field(default="text", metadata={"help": "Field of a JSON record that holds the text."})
    chat_template: str | None = field(
        default=None,
        metadata={
            "help": 'File with the Jinja template that writes "messages", saved with the model. '
            "Default: the tokenizer's own."
        },
    )
    block_size: int | None = field(
        default=None,
        metadata={
            "help": "Most tokens per sequence. Default: 256, with sft 1024, or less if the model takes less."
        },
    )
    long_sequences: Literal["cut", "drop", "refuse"] | None = field(
        default=None,
        metadata={
            "help": "What becomes of records longer than --block_size (sft): cut takes their end off, drop "
            "leaves them out, refuse stops. Default: cut."
        },
    )
    packing: Literal["stream", "none", "sequential", "best_fit"] | None = field(
        default=None,
        metadata={
            "help": "stream: all documents in one stream, cut into --block_size, attention running on from "
            "one to the next. none: one document a row, padded. sequential, best_fit: several documents a "
            "row, none of which sees another, in order or tightly. Default: stream, with sft none."
        },
    )
    pad_to_multiple_of: int | None = field(
        default=None,
        metadata={
            "help": "Batches are padded to their longest row, rounded up to a multiple of this; --block_size "
            f"gives all batches one shape. Default: {PAD_MULTIPLE}. With stream nothing is padded."
        },
    )
    validation_fraction: float = field(
        default=0.05, metadata={"help": "Share of sequences evaluated on without --validation_file."}
    )
    stdlib_bytes: int = field(
        default=2 << 20, metadata={"help": "Bytes of the standard library's source to use."}
    )
    max_eval_blocks: int = field(default=256, metadata={"help": "Most sequences to evaluate on; 0: all."})
    sample_tokens: int = field(
        default=128, metadata={"help": "Tokens of the continuation sampled at the end; 0 means none."}
    )
    sample_prompt: str = field(default="def ", metadata={"help": "Text the sample starts from."})

    def __post_init__(self) -> None:
        for flag, path in (("--train_file", self.train_file), ("--validation_file", self.validation_file)):
            if path is not None and not Path(path).exists():
                raise TrainingInputError(f"{flag} {path} does not exist; give a file or directory")
        if self.block_size is not None and self.block_size < 2:
            raise TrainingInputError(f"--block_size must be at least 2 tokens, got {self.block_size}")
        if not 0 < self.validation_fraction < 1:
            raise TrainingInputError(
                f"--validation_fraction must lie between 0 and 1 (excluded), got {self.validation_fraction}"
            )
        if self.stdlib_bytes < 1:
            raise TrainingInputError(f"--stdlib_bytes must be at least 1, got {self.stdlib_bytes}")
        for flag, value in (
            ("--max_eval_blocks", self.max_eval_blocks),
            ("--sample_tokens", self.sample_tokens),
        ):
            if value < 0:
                raise TrainingInputError(f"{flag} must not be negative, got {value}")
        if self.sample_tokens and not self.sample_prompt:
            raise TrainingInputError("--sample_prompt must not be empty; give some text or --sample_tokens 0")
        self._check_task()
        self._check_packing()

    def _check_task(self) -> None:
        """Raise TrainingInputError for flags that the task would pass over, or lacks."""
        if self.task == "sft":
            if self.train_file is None:
                raise TrainingInputError("--task sft needs records; name them with --train_file FILE.jsonl")
            if self.chat_template is not None and not Path(self.chat_template).is_file():
                raise TrainingInputError(
                    f"--chat_template {self.chat_template} is no file; give a Jinja template's"
                )
            return
        for flag, value in (
            ("--chat_template", self.chat_template),
            ("--long_sequences", self.long_sequences),
        ):
            if value is not None:
                raise TrainingInputError(f"{flag} {value} is for --task sft; give that too, or leave it out")

    def _check_packing(self) -> None:
        """Raise TrainingInputError where packing and padding do not go together with the task."""
        if self.task == "sft" and self.packing == "stream":
            raise TrainingInputError(
                "--packing stream would cut through answers and let records see each other; with --task sft "
                "choose none, sequential or best_fit"
            )
        if self.pad_to_multiple_of is None:
            return
        if self.pad_to_multiple_of < 1:
            raise TrainingInputError(
                f"--pad_to_multiple_of must be at least 1, got {self.pad_to_multiple_of}"
            )
        if self.row_packing == "stream":
            raise TrainingInputError(
                "--pad_to_multiple_of has no effect with --packing stream, whose rows are all of "
                "--block_size; leave it out or choose another packing"
            )

    @property
    def row_packing(self) -> str:
        """The packing asked for, or the task's own."""
        return self.packing or ("stream" if self.task == "pretrain" else "none")

    @property
    def packs_documents(self) -> bool:
        """Whether rows hold several documents that must not see each other."""
        return self.row_packing in ("sequential", "best_fit")
