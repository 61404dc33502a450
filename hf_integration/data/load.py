"""From the arguments to what the Trainer takes: rows to train on, rows to evaluate on, and the collator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch.utils.data import Dataset, Subset
from transformers import PreTrainedTokenizerBase

from hf_integration.data.arguments import PAD_MULTIPLE, DataArguments
from hf_integration.data.collator import Collator
from hf_integration.data.files import read_documents, read_json_lines
from hf_integration.data.packing import pack
from hf_integration.data.sequences import Sequences, cut_into_blocks, cut_into_pieces, split_off
from hf_integration.data.standard_library import standard_library
from hf_integration.data.supervised import Encoder, encode_records
from hf_integration.data.text import tokenize
from hf_integration.errors import TrainingInputError


@dataclass(frozen=True)
class TrainingData:
    """Rows to train and evaluate on.

    Attributes:
        train: what the collator takes.
        evaluation: the same, not trained on.
        collator: makes batches of both.
        tokens_per_row: of the rows to train on, on average, padding not counted.
        tokens_per_byte: of the training text, which turns nats per token into nats per byte; None for
            records, whose tokens stand for a template's text too.
        notes: what was cut or left out, one sentence each.
    """

    train: Dataset
    evaluation: Dataset
    collator: Collator
    tokens_per_row: float
    tokens_per_byte: float | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """The sequences of one file or directory, in its order; see `TrainingData` for the rest."""

    sequences: Sequences
    tokens_per_byte: float | None
    notes: tuple[str, ...] = ()


def load_data(
    arguments: DataArguments, *, block_size: int, longest: int | None, tokenizer: PreTrainedTokenizerBase
) -> TrainingData:
    """Read, tokenize, split and pack what ``arguments`` ask for.

    Args:
        arguments: what to read and how to cut it.
        block_size: most tokens of a row.
        longest: most tokens that the model takes; None for any number.
        tokenizer: with the chat template, if conversations need one.

    Raises:
        TrainingInputError: the text cannot be read or is too short.
    """
    source = read_source(arguments, "--train_file", block_size, tokenizer)
    notes = source.notes
    if arguments.validation_file is None:
        train, evaluation = split_off(source.sequences, arguments.validation_fraction)
    else:
        held_out = read_source(arguments, "--validation_file", block_size, tokenizer)
        train, evaluation = source.sequences, held_out.sequences
        notes += held_out.notes
    rows, held_out_rows = (to_rows(part, arguments, block_size) for part in (train, evaluation))
    if arguments.max_eval_blocks:
        held_out_rows = Subset(held_out_rows, range(min(arguments.max_eval_blocks, len(held_out_rows))))
    padded = arguments.row_packing != "stream"
    return TrainingData(
        train=rows,
        evaluation=held_out_rows,
        collator=Collator(
            pad_id=padding_id(tokenizer),
            multiple=(arguments.pad_to_multiple_of or PAD_MULTIPLE) if padded else 1,
            longest=longest,
            mask=padded,
        ),
        tokens_per_row=int(train.lengths.sum()) / len(rows),
        tokens_per_byte=source.tokens_per_byte,
        notes=notes,
    )


def read_source(
    arguments: DataArguments, flag: str, block_size: int, tokenizer: PreTrainedTokenizerBase
) -> Source:
    """Return the sequences of what ``flag``, --train_file or --validation_file, names.

    Raises:
        TrainingInputError: it cannot be read, or makes no sequence.
    """
    named = arguments.train_file if flag == "--train_file" else arguments.validation_file
    if arguments.task == "sft":
        lines = read_json_lines(Path(str(named)))
        encoder = Encoder(
            tokenizer, block_size, arguments.long_sequences or "cut", arguments.text_column, lines.places
        )
        encoded = encode_records(lines.lines, encoder, flag)
        return Source(encoded.sequences, None, encoded.notes)
    if named is None:
        documents = standard_library(arguments.stdlib_bytes)
    else:
        documents = read_documents(Path(named), arguments.text_column)
    text = tokenize(documents, tokenizer)
    if arguments.row_packing == "stream":
        sequences, shortest = cut_into_blocks(text.tokens, block_size), block_size
    else:
        sequences, shortest = cut_into_pieces(text.tokens, text.lengths, block_size), 2
    if len(sequences) == 0:
        raise TrainingInputError(
            f"{flag} is shorter than one sequence of {shortest} tokens; give more text"
            + (" or lower --block_size" if shortest == block_size else "")
        )
    return Source(sequences, text.tokens_per_byte)


def to_rows(sequences: Sequences, arguments: DataArguments, block_size: int) -> Dataset:
    """Return ``sequences`` as the rows that ``arguments`` ask for: each by itself, or packed."""
    if not arguments.packs_documents:
        return sequences
    return pack(sequences, block_size, "best_fit" if arguments.packing == "best_fit" else "sequential")


def padding_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token id to pad with: the tokenizer's own, else its end-of-text token, else 0."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0
