"""Rows of several documents: how they are filled, and that no document sees another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_flash_attention_utils import _is_packed_sequence

from hf_integration.data.collator import Collator
from hf_integration.data.packing import (
    PACKABLE_ATTENTION,
    PACKABLE_FAMILIES,
    check_packing,
    pack,
    pack_best_fit,
    pack_sequentially,
)
from hf_integration.data.sequences import NO_LOSS, Sequences, TokenStream
from hf_integration.errors import TrainingInputError

VOCABULARY = 64
LENGTHS = st.lists(st.integers(1, 12), max_size=40)


@pytest.mark.parametrize("packer", [pack_sequentially, pack_best_fit])
@given(lengths=LENGTHS)
def test_every_sequence_is_in_one_row_and_rows_hold_what_they_can(
    packer: Callable, lengths: list[int]
) -> None:
    rows = packer(np.array(lengths, dtype=np.int64), 12)
    assert sorted(sum(rows, [])) == list(range(len(lengths)))
    assert all(0 < sum(lengths[index] for index in row) <= 12 for row in rows)
    assert rows == packer(np.array(lengths, dtype=np.int64), 12)


@given(lengths=LENGTHS)
def test_best_fit_is_near_the_fewest_rows(lengths: list[int]) -> None:
    rows = len(pack_best_fit(np.array(lengths, dtype=np.int64), 12))
    assert rows <= 11 / 9 * first_fit_decreasing(lengths, 12) + 1
    # No two rows fit into one.
    sums = sorted(
        sum(lengths[index] for index in row) for row in pack_best_fit(np.array(lengths, dtype=np.int64), 12)
    )
    assert len(sums) < 2 or sums[0] + sums[1] > 12


def first_fit_decreasing(lengths: list[int], capacity: int) -> int:
    """Return the rows that the other well-known rule needs, written down plainly."""
    rows: list[int] = []
    for length in sorted(lengths, reverse=True):
        place = next((i for i, used in enumerate(rows) if used + length <= capacity), None)
        if place is None:
            rows.append(length)
        else:
            rows[place] += length
    return len(rows)


def test_order_is_kept_by_the_one_and_space_is_saved_by_the_other() -> None:
    lengths = np.array([7, 6, 5, 4, 3])
    assert pack_sequentially(lengths, 12) == [[0], [1, 2], [3, 4]]
    assert pack_best_fit(lengths, 12) == [[0, 2], [1, 3]] + [[4]]


def documents(lengths: list[int], seed: int = 0) -> Sequences:
    """Return documents of random tokens; of some tokens the label is -100, as in questions."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (sum(lengths),), generator=generator)
    labels = ids.masked_fill(torch.rand(len(ids), generator=generator) < 0.3, NO_LOSS)
    starts = np.cumsum(lengths) - np.array(lengths)
    return Sequences(TokenStream([ids.numpy()]), starts, np.array(lengths), TokenStream([labels.numpy()]))


def test_row_restarts_its_positions_and_no_document_predicts_the_next() -> None:
    row = pack(documents([3, 2]), 8, "sequential")[0]
    assert row["position_ids"].tolist() == [0, 1, 2, 0, 1]
    assert row["labels"][0] == row["labels"][3] == NO_LOSS


def tiny(family: str, attention: str, **changes: object) -> PreTrainedModel:
    """Return a small model of ``family`` with random weights."""
    config = AutoConfig.for_model(
        family,
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "use_cache": False,
            **changes,
        },
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    return model.eval()


def losses(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> list[float]:
    """Return the loss of every token of ``batch`` that has a label, row by row."""
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    with torch.no_grad():
        logits = model(**inputs).logits[:, :-1]
    targets = batch["labels"][:, 1:]
    each = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=NO_LOSS)
    return each[targets.flatten() != NO_LOSS].tolist()


@pytest.mark.parametrize("attention", PACKABLE_ATTENTION)
@pytest.mark.parametrize("family", PACKABLE_FAMILIES)
def test_packed_documents_have_the_losses_of_each_alone(family: str, attention: str) -> None:
    model = tiny(family, attention)
    sequences = documents([7, 9, 2, 12, 5])
    rows = pack(sequences, 20, "sequential")
    batch = Collator(multiple=8)([rows[i] for i in range(len(rows))])
    assert batch["input_ids"].shape == (2, 24)  # two rows of several documents, with padding behind both
    check_packing(model.config, use_cache=False, rows=2)
    alone = [losses(model, Collator()([sequences[i]])) for i in range(len(sequences))]
    assert losses(model, batch) == pytest.approx(sum(alone, []), abs=1e-5)
    padded = Collator(multiple=8)([sequences[i] for i in range(len(sequences))])
    assert losses(model, padded) == pytest.approx(sum(alone, []), abs=1e-5)


def test_sliding_windows_count_within_each_document() -> None:
    model = tiny("mistral", "sdpa", sliding_window=4)
    sequences = documents([9, 11])
    batch = Collator()([pack(sequences, 20, "sequential")[0]])
    alone = [losses(model, Collator()([sequences[i]])) for i in range(2)]
    assert losses(model, batch) == pytest.approx(sum(alone, []), abs=1e-5)


def test_loss_and_gradient_are_the_documents_together() -> None:
    model = tiny("llama", "sdpa")
    sequences = documents([6, 9])
    batches = [Collator()([sequences[i]]) for i in range(2)]
    count = sum(int((batch["labels"] != NO_LOSS).sum()) for batch in batches)
    for batch in batches:
        model(**batch, num_items_in_batch=torch.tensor(count)).loss.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    packed = Collator(multiple=8)([pack(sequences, 20, "best_fit")[0]])
    model(**packed).loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-5)


def test_what_lets_documents_see_each_other_is_refused() -> None:
    with pytest.raises(TrainingInputError, match="a bloom model is not known to keep .* a model of llama, "):
        check_packing(tiny("bloom", "eager").config, use_cache=False, rows=1)
    model = tiny("llama", "sdpa")
    with pytest.raises(TrainingInputError, match="with a cache, attention crosses the packed documents"):
        check_packing(model.config, use_cache=True, rows=1)
    for attention, rows in (("flash_attention_2", 2), ("flex_attention", 1), ("someone's own", 1)):
        model.config._attn_implementation_internal = attention
        with pytest.raises(TrainingInputError, match=rf"with {attention} attention and {rows} row\(s\)"):
            check_packing(model.config, use_cache=False, rows=rows)


@pytest.mark.parametrize(("family", "use_cache"), [("opt", False), ("llama", True)])
def test_what_is_refused_does_let_documents_see_each_other(family: str, use_cache: bool) -> None:
    model = tiny(family, "eager", use_cache=use_cache)
    sequences = documents([7, 9])
    alone = sum((losses(model, Collator()([sequences[i]])) for i in range(2)), [])
    found = losses(model, Collator()([pack(sequences, 16, "sequential")[0]]))
    assert max(abs(a - b) for a, b in zip(found, alone, strict=True)) > 1e-3


def test_flash_attention_sees_documents_in_batches_of_one_row() -> None:
    """transformers' own detection, without the kernels, which run on accelerators only."""
    model = tiny("llama", "sdpa")
    model.config._attn_implementation_internal = "flash_attention_2"
    check_packing(model.config, use_cache=False, rows=1)
    positions = Collator(multiple=8)([pack(documents([3, 2]), 8, "sequential")[0]])["position_ids"]
    assert _is_packed_sequence(positions, batch_size=1)
    assert not _is_packed_sequence(positions.expand(2, -1), batch_size=2)
