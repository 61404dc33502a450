"""Token sequences, read by index from the Arrow chunks that hold them; nothing is copied before its use."""

from __future__ import annotations

import bisect
from itertools import accumulate

import numpy as np
import torch
from torch.utils.data import Dataset

from hf_integration.errors import TrainingInputError

# What torch's cross entropy and the losses of transformers pass over.
NO_LOSS = -100


class TokenStream:
    """Integers in consecutive arrays (one per Arrow chunk), read as if they were one array.

    Args:
        parts: the arrays, one-dimensional, in order.
    """

    def __init__(self, parts: list[np.ndarray]) -> None:
        self._parts = parts
        self._starts = [0, *accumulate(len(part) for part in parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Return the integers ``start`` to ``stop`` (excluded), int64."""
        first = bisect.bisect_right(self._starts, start) - 1
        last = bisect.bisect_left(self._starts, stop) - 1
        spans = zip(self._parts[first : last + 1], self._starts[first : last + 1], strict=True)
        pieces = [part[max(start - begin, 0) : stop - begin] for part, begin in spans]
        return torch.from_numpy(np.concatenate(pieces).astype(np.int64))


class Sequences(Dataset):
    """Stretches of a stream of tokens, each one example.

    Args:
        tokens: token ids of the whole text.
        starts: where each sequence begins in ``tokens``.
        lengths: how many tokens each has, at least one.
        labels: what each token's label is, as long as ``tokens``; by default the tokens themselves.
    """

    def __init__(
        self,
        tokens: TokenStream,
        starts: np.ndarray,
        lengths: np.ndarray,
        labels: TokenStream | None = None,
    ) -> None:
        self.starts = starts
        self.lengths = lengths
        self._tokens = tokens
        self._labels = labels

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return sequence ``index``: ``input_ids`` and ``labels``, int64, ``[tokens]``."""
        if not 0 <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)}")
        start = int(self.starts[index])
        stop = start + int(self.lengths[index])
        ids = self._tokens.read(start, stop)
        return {"input_ids": ids, "labels": ids if self._labels is None else self._labels.read(start, stop)}

    def part(self, start: int, stop: int) -> Sequences:
        """Return the sequences ``start`` to ``stop`` (excluded)."""
        return Sequences(self._tokens, self.starts[start:stop], self.lengths[start:stop], self._labels)


def cut_into_blocks(tokens: TokenStream, block_size: int) -> Sequences:
    """Return consecutive blocks of ``block_size`` tokens; only the last, incomplete one is dropped.

    Blocks run across documents and across Arrow chunks, so no text is lost to batch borders.
    """
    count = len(tokens) // block_size
    return Sequences(tokens, np.arange(count) * block_size, np.full(count, block_size))


def cut_into_pieces(tokens: TokenStream, document_lengths: np.ndarray, block_size: int) -> Sequences:
    """Return each document by itself, one longer than ``block_size`` in pieces of that many tokens.

    A piece of one token is left out: nothing precedes it that could predict it. So are empty documents.

    Args:
        tokens: the documents, one behind the other.
        document_lengths: tokens of each document.
        block_size: most tokens of a piece.
    """
    pieces = -(-document_lengths // block_size)
    document = np.repeat(np.arange(len(document_lengths)), pieces)
    # Number of each piece within its document.
    number = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begins = np.cumsum(document_lengths) - document_lengths
    lengths = np.minimum(document_lengths[document] - number * block_size, block_size)
    starts = begins[document] + number * block_size
    return Sequences(tokens, starts[lengths > 1], lengths[lengths > 1])


def split_off(sequences: Sequences, fraction: float) -> tuple[Sequences, Sequences]:
    """Return the first sequences for training and the last ``fraction``, at least one, for evaluation.

    Raises:
        TrainingInputError: there are fewer than two.
    """
    if len(sequences) < 2:
        raise TrainingInputError(
            f"the data set makes {len(sequences)} sequence(s), but one to train on and one to evaluate on "
            "are needed; give more text, lower --block_size, or name a --validation_file"
        )
    held_out = min(len(sequences) - 1, max(1, round(len(sequences) * fraction)))
    border = len(sequences) - held_out
    return sequences.part(0, border), sequences.part(border, len(sequences))
