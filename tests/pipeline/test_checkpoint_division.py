"""Parts of parameters and their wholes, without any ranks, against DeepSpeed's own geometry."""

from __future__ import annotations

import torch
from deepspeed.checkpoint.affine import ParamAffineMap
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.pipeline.checkpoints.description import affine_map
from npu_plugins.pipeline.checkpoints.division import Division
from npu_plugins.tensor_parallel.shard import Shard


@st.composite
def divisions(draw: st.DrawFn) -> tuple[list[int], Division]:
    """A whole's shape and how a rank holds it."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    dim, size = draw(st.integers(0, len(shape) - 1)), draw(st.integers(1, 4))
    rank, kind = draw(st.integers(0, size - 1)), draw(st.sampled_from(["plain", "parts", "padded", "whole"]))
    transposed = len(shape) == 2 and draw(st.booleans())
    if kind == "whole":
        return shape, Division(None, transposed)
    parts = tuple(size * each for each in draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    if kind == "padded":
        full = draw(st.integers(1, 3 * size))
        shard = Shard(dim, rank, size, full, padded_size=-(-full // size) * size)
    else:
        shard = Shard(dim, rank, size, sum(parts), parts if kind == "parts" else ())
    held = list(shape)
    held[dim] = shard.full_size
    return held[::-1] if transposed else held, Division(shard, transposed)


@given(divisions())
def test_parts_join_to_the_whole(case: tuple[list[int], Division]) -> None:
    shape, division = case
    full = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    shard = division.shard
    ranks = [division] if shard is None else [
        Division(shard.of_rank(rank), division.transposed) for rank in range(shard.size)
    ]  # fmt: skip
    parts = [each.take(full) for each in ranks]
    assert all(list(part.shape) == division.local_shape(shape) for part in parts)
    assert division.full_shape(parts[0].shape) == shape
    assert torch.equal(division.join(parts), full)
    assert Division.from_plain(division.plain()) == division


@given(divisions())
def test_deepspeeds_converter_is_told_right(case: tuple[list[int], Division]) -> None:
    """What ds_to_universal.py puts together by our map is the whole, but for padding and orientation."""
    shape, division = case
    shard = division.shard
    if shard is None:
        return
    full = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    parts = {
        rank: Division(shard.of_rank(rank), division.transposed).take(full).contiguous()
        for rank in range(shard.size)
    }
    told = ParamAffineMap.from_dict(affine_map(list(parts[0].shape), shard))
    told.validate_coverage()
    assert torch.equal(division.unpadded(told.rebuild(parts)), full)
