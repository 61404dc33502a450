"""Supervised fine-tuning: records in, sequences out whose labels are the answers and nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
import pyarrow.compute as pc
from transformers import PreTrainedTokenizerBase

from hf_integration.data.answers import encode_completion, require_offsets
from hf_integration.data.chat import ChatFormat
from hf_integration.data.files import Places
from hf_integration.data.records import Conversation, parse_record
from hf_integration.data.sequences import NO_LOSS, Sequences, TokenStream
from hf_integration.errors import TrainingInputError

LongSequences = Literal["cut", "drop", "refuse"]
COLUMNS = ("input_ids", "labels", "outcome")


class Outcome(IntEnum):
    """What became of a record."""

    KEPT = 0
    CUT = 1
    TOO_LONG = 2
    NO_ANSWER = 3


def rules_digest() -> str:
    """Return a digest of the code that encodes; it stands in the key of the cache of ``datasets``.

    That cache goes by the data, the tokenizer and the settings, and would outlive a change of the rules.
    """
    names = ("answers.py", "chat.py", "records.py", "supervised.py")
    code = b"".join(Path(__file__).with_name(name).read_bytes() for name in names)
    return hashlib.sha256(code).hexdigest()


@dataclass
class Encoder:
    """Turns JSON lines into token ids and labels.

    Attributes:
        tokenizer: a fast one; with a chat template if there are conversations.
        limit: most tokens of a sequence.
        long_sequences: what becomes of longer records: ``cut`` takes the end off, ``drop`` leaves them out
            and ``refuse`` raises.
        text_column: field of a record that is a text and nothing else.
        places: where lines stand, for messages.
        rules: `rules_digest`.
    """

    tokenizer: PreTrainedTokenizerBase
    limit: int
    long_sequences: LongSequences
    text_column: str
    places: Places
    rules: str = field(default_factory=rules_digest)

    @cached_property
    def chat(self) -> ChatFormat:
        """The tokenizer's chat format, asked for when the first conversation comes."""
        return ChatFormat(self.tokenizer)

    def __call__(self, batch: dict[str, list[str]], indices: list[int]) -> dict[str, list]:
        """Encode a batch of lines for `datasets.Dataset.map`; blank lines vanish.

        Raises:
            TrainingInputError: a record is refused, with its file and line.
        """
        rows: dict[str, list] = {name: [] for name in COLUMNS}
        for line, index in zip(batch["text"], indices, strict=True):
            if not line.strip():
                continue
            try:
                encoded = self.encode(line)
            except TrainingInputError as error:
                raise TrainingInputError(f"{self.places[index]} {error}") from error
            for name, value in zip(COLUMNS, encoded, strict=True):
                rows[name].append(value)
        return rows

    def encode(self, line: str) -> tuple[list[int], list[int], Outcome]:
        """Return the token ids of the record in ``line``, its labels, and what became of it.

        Both lists are empty where it is left out.

        Raises:
            TrainingInputError: it is refused; the message is to follow its place.
        """
        record = parse_record(line, self.text_column)
        if isinstance(record, Conversation):
            ids, answers = self.chat.encode(record)
        else:
            require_offsets(self.tokenizer)
            ids, answers = encode_completion(self.tokenizer, record.prompt, record.completion)
        outcome = Outcome.KEPT
        if len(ids) > self.limit:
            outcome = Outcome.CUT
            if self.long_sequences == "drop":
                return [], [], Outcome.TOO_LONG
            if self.long_sequences == "refuse":
                raise TrainingInputError(
                    f"has {len(ids)} tokens, more than the {self.limit} of --block_size; raise it if the "
                    "model has the positions, or give --long_sequences cut or drop"
                )
        labels = [
            token if flag else NO_LOSS
            for token, flag in zip(ids[: self.limit], answers[: self.limit], strict=True)
        ]
        # The first token is no target: nothing precedes it that could predict it.
        if all(label == NO_LOSS for label in labels[1:]):
            return [], [], Outcome.NO_ANSWER
        return ids[: self.limit], labels, outcome


@dataclass(frozen=True)
class Supervised:
    """Encoded records.

    Attributes:
        sequences: one for each record that was kept, in the order of the files.
        notes: what was cut or left out, one sentence each.
    """

    sequences: Sequences
    notes: tuple[str, ...]


def encode_records(lines: datasets.Dataset, encoder: Encoder, flag: str) -> Supervised:
    """Encode all ``lines`` (`JsonLines`); ``flag`` is what named them, for messages.

    Raises:
        TrainingInputError: a record is refused, or none is left.
    """
    tokens = datasets.Sequence(datasets.Value("int32"))
    kinds = (tokens, tokens, datasets.Value("int8"))
    encoded = lines.map(
        encoder,
        with_indices=True,
        batched=True,
        batch_size=100,
        remove_columns=["text"],
        features=datasets.Features(zip(COLUMNS, kinds, strict=True)),
        desc="Tokenizing",
    )
    outcomes = np.bincount(np.asarray(encoded["outcome"], dtype=np.int64), minlength=len(Outcome))
    lengths = pc.list_value_length(encoded.data.column("input_ids")).to_numpy().astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    notes = outcome_notes(outcomes, encoder.limit, flag)
    if not lengths.any():
        reasons = f": {'; '.join(notes)}" if notes else ""
        raise TrainingInputError(f"{flag} has no record to train on{reasons}; give records with answers")
    sequences = Sequences(
        flat(encoded, "input_ids"), starts[lengths > 0], lengths[lengths > 0], flat(encoded, "labels")
    )
    return Supervised(sequences, notes)


def flat(encoded: datasets.Dataset, column: str) -> TokenStream:
    """Return the lists in ``column``, one behind the other."""
    return TokenStream([chunk.flatten().to_numpy() for chunk in encoded.data.column(column).chunks])


def outcome_notes(outcomes: Any, limit: int, flag: str) -> tuple[str, ...]:
    """Return what was cut or left out of ``flag``, as sentences; ``outcomes`` counts by `Outcome`."""
    total = int(sum(outcomes))
    sentences = {
        Outcome.CUT: f"were longer than {limit} tokens and lost their end",
        Outcome.TOO_LONG: f"were longer than {limit} tokens and left out",
        Outcome.NO_ANSWER: f"had no answer within their first {limit} tokens and were left out",
    }
    return tuple(
        f"{outcomes[outcome]} of the {total} records of {flag} {sentence}"
        for outcome, sentence in sentences.items()
        if outcomes[outcome]
    )
