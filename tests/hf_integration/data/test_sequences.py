"""Streams of tokens cut into blocks, pieces and splits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_integration.data.sequences import (
    Sequences,
    TokenStream,
    cut_into_blocks,
    cut_into_pieces,
    split_off,
)
from hf_integration.errors import TrainingInputError

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=8)


def numbered(lengths: list[int]) -> TokenStream:
    """Return the numbers from 0 on in arrays of these ``lengths``."""
    return TokenStream(np.split(np.arange(sum(lengths), dtype=np.int32), np.cumsum(lengths)[:-1]))


@given(lengths=LENGTHS, block=st.integers(1, 7))
def test_blocks_are_the_text_cut_up_whatever_the_chunks(lengths: list[int], block: int) -> None:
    blocks = cut_into_blocks(numbered(lengths), block)
    assert len(blocks) == sum(lengths) // block
    for index in range(len(blocks)):
        expected = torch.arange(index * block, (index + 1) * block)
        assert torch.equal(blocks[index]["input_ids"], expected)
        assert torch.equal(blocks[index]["labels"], expected)
    with pytest.raises(IndexError):
        blocks[len(blocks)]


@given(chunks=LENGTHS, documents=LENGTHS, block=st.integers(2, 7))
def test_pieces_are_each_document_cut_up_by_itself(
    chunks: list[int], documents: list[int], block: int
) -> None:
    chunks = [*chunks, max(0, sum(documents) - sum(chunks))]
    pieces = cut_into_pieces(numbered(chunks), np.array(documents), block)
    expected, start = [], 0
    for length in documents:
        document = list(range(start, start + length))
        expected += [document[i : i + block] for i in range(0, length, block)]
        start += length
    found = [pieces[i]["input_ids"].tolist() for i in range(len(pieces))]
    assert found == [piece for piece in expected if len(piece) > 1]


def test_labels_of_their_own() -> None:
    tokens, labels = numbered([4]), TokenStream([np.array([-100, 1, -100, 3], dtype=np.int32)])
    sequences = Sequences(tokens, np.array([1, 0]), np.array([3, 1]), labels)
    assert sequences[0]["input_ids"].tolist() == [1, 2, 3]
    assert sequences[0]["labels"].tolist() == [1, -100, 3]
    assert sequences.part(1, 2)[0]["labels"].tolist() == [-100]


@given(count=st.integers(2, 50), fraction=st.floats(0.001, 0.999))
def test_both_splits_get_at_least_one_sequence(count: int, fraction: float) -> None:
    train, held_out = split_off(cut_into_blocks(numbered([count]), 1), fraction)
    assert len(train) >= 1 and len(held_out) >= 1
    found = [part[i]["input_ids"].item() for part in (train, held_out) for i in range(len(part))]
    assert found == list(range(count))


def test_one_sequence_cannot_be_split() -> None:
    with pytest.raises(TrainingInputError, match=r"makes 1 sequence\(s\), but one to train on and one to"):
        split_off(cut_into_blocks(numbered([5]), 5), 0.5)
