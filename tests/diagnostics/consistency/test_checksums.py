"""A checksum is the same for the same bits, and another for any single change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.diagnostics.consistency import checksum
from npu_plugins.diagnostics.consistency.checksums import PIECE, WIDTH, WORDS, bits

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.int64,
    torch.uint8,
    torch.bool,
)


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Any bits, nan and infinity among them, as a tensor."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    count = int(np.prod(shape)) * torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def by_formula(words: list[int]) -> list[int]:
    """Both sums, in whole numbers of any size."""
    by_column = sum(word * (2 * (place % WIDTH) + 1) for place, word in enumerate(words))
    by_row = sum(word * (2 * (place // WIDTH) + 1) for place, word in enumerate(words))
    return [(each + 2**63) % 2**64 - 2**63 for each in (by_column, by_row)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (2 * WIDTH,), (7, WIDTH - 1)], ids=str)
def test_sums_are_those_of_the_formula(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(dtype, shape)
    assert checksum(tensor).tolist() == by_formula(bits(tensor).tolist())


@pytest.mark.parametrize("more", [0, WIDTH + 3], ids=str)
def test_tensors_that_are_summed_in_pieces(more: int) -> None:
    tensor = random_tensor(torch.int16, (PIECE + more,))
    words = tensor.numpy().astype(np.int64)
    place = np.arange(len(words))
    wanted = [int((words * (2 * weight + 1)).sum()) for weight in (place % WIDTH, place // WIDTH)]
    assert checksum(tensor).tolist() == wanted


@given(st.sampled_from(DTYPES[:-1]), st.integers(1, 700), st.data())
def test_one_flipped_bit_changes_both_sums(dtype: torch.dtype, count: int, data: st.DataObject) -> None:
    tensor = random_tensor(dtype, (count,), seed=count)
    changed = tensor.clone()
    raw = changed.view(torch.uint8)
    place = data.draw(st.integers(0, raw.numel() - 1))
    raw[place] ^= 1 << data.draw(st.integers(0, 7))
    before, after = checksum(tensor), checksum(changed)
    assert (before != after).all()


@given(st.integers(2, 900), st.data())
def test_two_elements_that_change_places_are_seen(count: int, data: st.DataObject) -> None:
    tensor = torch.arange(1, count + 1, dtype=torch.float32)
    one, other = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True))
    changed = tensor.clone()
    changed[[one, other]] = tensor[[other, one]]
    assert checksum(tensor).tolist() != checksum(changed).tolist()


def test_layout_in_memory_does_not_count() -> None:
    tensor = random_tensor(torch.float32, (6, 300))
    assert checksum(tensor.t().contiguous().t()).tolist() == checksum(tensor).tolist()


def test_words_have_at_most_four_bytes() -> None:
    """Whose sums with weights cannot wrap, so that a change of one of them cannot be lost."""
    assert max(WORDS) == 4
