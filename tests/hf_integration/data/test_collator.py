"""Batches of sequences of unlike length."""

from __future__ import annotations

import pytest
import torch

from hf_integration.data.collator import Collator


def example(*ids: int, labels: list[int] | None = None) -> dict[str, torch.Tensor]:
    """Return a sequence; its labels are its tokens unless given."""
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(ids if labels is None else labels)}


def test_padding_is_masked_and_has_no_label() -> None:
    batch = Collator(pad_id=9, multiple=4)([example(1, 2, 3, 4, 5), example(6, 7)])
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 9, 9, 9], [6, 7, 9, 9, 9, 9, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1] * 5 + [0] * 3, [1] * 2 + [0] * 6]
    assert batch["labels"].tolist() == [[-100, 2, 3, 4, 5] + [-100] * 3, [-100, 7] + [-100] * 6]
    assert all(value.dtype == torch.int64 for value in batch.values())


def test_an_end_token_that_also_pads_keeps_its_label() -> None:
    batch = Collator(pad_id=7)([example(5, 7), example(5, 6, 7)])
    assert batch["labels"].tolist() == [[-100, 7, -100], [-100, 6, 7]]


def test_padding_of_packed_rows_is_a_document_of_its_own() -> None:
    row = {**example(1, 2, 3), "position_ids": torch.tensor([0, 1, 0])}
    batch = Collator(multiple=5)([row])
    assert batch["position_ids"].tolist() == [[0, 1, 0, 0, 1]]
    assert "attention_mask" not in batch  # with one, transformers does not look at the positions


def test_rounding_stops_at_the_models_length() -> None:
    assert [Collator(multiple=8, longest=21).padded(length) for length in (8, 9, 17, 21)] == [8, 16, 21, 21]
    assert Collator(multiple=8).padded(17) == 24


def test_blocks_of_one_length_need_no_mask() -> None:
    blocks = [example(1, 2), example(3, 4)]
    batch = Collator(mask=False)(blocks)
    assert set(batch) == {"input_ids", "labels"}
    assert batch["labels"].tolist() == [[-100, 2], [-100, 4]]
    assert blocks[0]["labels"].tolist() == [1, 2]
    with pytest.raises(ValueError, match="sequences of 1 to 2 tokens cannot be told from padding"):
        Collator(mask=False)([example(1, 2), example(3)])
