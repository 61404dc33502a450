"""What a shard holds of the full tensor, for any sizes (no ranks needed: a shard is arithmetic)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.tensor_parallel import Shard, TensorParallelError
from npu_plugins.tensor_parallel.shard import join, padded_size

sizes = st.integers(1, 5)


@st.composite
def all_shards(draw: st.DrawFn) -> tuple[list[Shard], list[int]]:
    """The shards of every rank, even, merged or padded, and the shape of the full tensor."""
    ranks, dim = draw(sizes), draw(st.integers(0, 2))
    parts: tuple[int, ...] = ()
    padded = None
    kind = draw(st.sampled_from(["even", "merged", "padded"]))
    if kind == "merged":
        parts = tuple(ranks * n for n in draw(st.lists(sizes, min_size=1, max_size=4)))
        length = sum(parts)
    elif kind == "padded":
        length = draw(st.integers(1, 30))
        padded = padded_size(length, ranks, draw(sizes))
    else:
        length = ranks * draw(sizes)
    shape = draw(st.lists(sizes, min_size=3, max_size=3))
    shape[dim] = length
    return [Shard(dim, rank, ranks, length, parts, padded) for rank in range(ranks)], shape


@given(all_shards())
def test_taking_and_joining_gives_the_full_tensor_back(case: tuple[list[Shard], list[int]]) -> None:
    shards, shape = case
    full = torch.arange(1, torch.Size(shape).numel() + 1).view(shape)
    pieces = [shard.take(full) for shard in shards]
    assert torch.equal(join(pieces, shards[0]), full)
    assert {piece.size(shard.dim) for piece, shard in zip(pieces, shards, strict=True)} == {
        shards[0].local_size
    }


@given(all_shards())
def test_every_element_is_held_once_and_padding_is_zero(case: tuple[list[Shard], list[int]]) -> None:
    shards, shape = case
    full = torch.arange(1, torch.Size(shape).numel() + 1).view(shape)
    held = torch.cat([shard.take(full).flatten() for shard in shards])
    assert sorted(held[held > 0].tolist()) == full.flatten().tolist()
    padding = shards[0].local_size * len(shards) - shards[0].full_size
    assert (held == 0).sum() == padding * full.numel() // shards[0].full_size


def test_a_merged_tensor_is_divided_part_by_part() -> None:
    """[q | k | v] of 4, 2 and 2 rows on two ranks."""
    full = torch.arange(8)
    taken = [Shard(0, rank, 2, 8, (4, 2, 2)).take(full).tolist() for rank in (0, 1)]
    assert taken == [[0, 1, 4, 6], [2, 3, 5, 7]]


def test_padding_lies_at_the_end() -> None:
    full = torch.arange(1, 6)
    taken = [Shard(0, rank, 4, 5, padded_size=8).take(full).tolist() for rank in range(4)]
    assert taken == [[1, 2], [3, 4], [5, 0], [0, 0]]


def test_bad_shards_are_refused() -> None:
    for arguments, words in (
        ((0, 0, 2, 5), "length of 5 does not divide into 2"),
        ((0, 2, 2, 4), "rank 2 is none of 2 shards"),
        ((0, 0, 2, 6, (4, 4)), "add up to 8, but full_size is 6"),
        ((0, 0, 2, 6, (3, 3)), "length of 3 does not divide into 2"),
        ((0, 0, 2, 6, (), 4), "padded_size 4 is less than full_size 6"),
        ((0, 0, 2, 6, (4, 2), 8), "cannot both be given"),
    ):
        with pytest.raises(TensorParallelError, match=words):
            Shard(*arguments)
    with pytest.raises(TensorParallelError, match=r"full tensor has shape \(5, 4\), but its dim 0 must be 4"):
        Shard(0, 0, 2, 4).take(torch.zeros(5, 4))
    with pytest.raises(TensorParallelError, match=r"local tensor has shape \(4,\), but its dim 0 must be 2"):
        Shard(0, 0, 2, 4).put(torch.zeros(4), torch.zeros(4))
