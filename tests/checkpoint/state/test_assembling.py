"""Pieces of parameters put together from parts that were divided, held and padded in other ways."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from npu_plugins.checkpoint.state.assembling import assemble
from npu_plugins.pipeline.checkpoints.division import Division
from npu_plugins.tensor_parallel.shard import Shard

VOCABULARY = 10
DIVISIONS = {
    "whole": Division(),
    "transposed": Division(transposed=True),
    "rows of 2": Division(Shard(0, 0, 2, 12)),
    "rows of 4": Division(Shard(0, 0, 4, 12)),
    "columns of 3": Division(Shard(1, 0, 3, 6)),
    "merged rows of 2": Division(Shard(0, 0, 2, 12, parts=(4, 4, 4))),
    "merged unevenly of 2": Division(Shard(0, 0, 2, 12, parts=(8, 2, 2))),
    "columns, held transposed": Division(Shard(0, 0, 3, 6), transposed=True),
    "rows, held transposed": Division(Shard(1, 0, 4, 12), transposed=True),
}


class InMemory:
    """A tensor that ranks hold parts of; remembers how many numbers were read."""

    def __init__(self, full: torch.Tensor, division: Division) -> None:
        self.full, self.division, self.shape = full, division, tuple(full.shape)
        self.read = 0

    def rows(self, rank: int, start: int, stop: int) -> torch.Tensor:
        found = part(self.full, self.division, rank)[start:stop]
        assert len(found) == stop - start
        self.read += found.numel()
        return found


def part(full: torch.Tensor, division: Division, rank: int) -> torch.Tensor:
    """Return what a rank holds of a whole tensor."""
    shard = division.shard
    own = Division(None if shard is None else shard.of_rank(rank), division.transposed)
    return own.take(full.reshape(full.shape or (1,))).contiguous()


def ranks_of(division: Division) -> range:
    return range(1 if division.shard is None else division.shard.size)


@pytest.mark.parametrize(("there", "here"), list(itertools.product(DIVISIONS, DIVISIONS)))
def test_any_piece_of_any_part(there: str, here: str) -> None:
    full = torch.arange(72.0).reshape(12, 6)
    source, wanted = InMemory(full, DIVISIONS[there]), DIVISIONS[here]
    for rank in ranks_of(wanted):
        shard = None if wanted.shard is None else wanted.shard.of_rank(rank)
        own = Division(shard, wanted.transposed)
        flat = part(full, wanted, rank).reshape(-1)
        for start, length in ((0, flat.numel()), (1, 7), (flat.numel() - 5, 5), (4, 1)):
            found = assemble(source, own, start, length)
            assert torch.equal(found, flat[start : start + length])


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (4, 2), (2, 4)])
def test_padded_vocabulary(before: int, after: int) -> None:
    full = torch.arange(1.0, 31.0).reshape(VOCABULARY, 3)

    def padded(size: int) -> Division:
        shard = Shard(0, 0, size, VOCABULARY, padded_size=math.ceil(VOCABULARY / size) * size)
        return Division(shard)

    source, wanted = InMemory(full, padded(before)), padded(after)
    for rank in range(after):
        flat = part(full, wanted, rank).reshape(-1)
        assert wanted.shard is not None
        assert torch.equal(assemble(source, Division(wanted.shard.of_rank(rank)), 0, flat.numel()), flat)


def test_single_number() -> None:
    source = InMemory(torch.tensor(3.0), Division())
    assert torch.equal(assemble(source, Division(), 0, 1), torch.tensor([3.0]))


@pytest.mark.parametrize(
    ("there", "here", "numbers"),
    [
        ("whole", "whole", 12),
        ("whole", "rows of 4", 12),
        ("rows of 4", "rows of 2", 12),
        ("merged rows of 2", "whole", 12),
    ],
)
def test_reads_only_the_rows_around_a_piece(there: str, here: str, numbers: int) -> None:
    source = InMemory(torch.arange(72.0).reshape(12, 6), DIVISIONS[there])
    assemble(source, DIVISIONS[here], 3, 8)
    assert source.read == numbers


def test_reads_no_rank_whose_part_is_not_wanted() -> None:
    asked = set()

    class Noting(InMemory):
        def rows(self, rank: int, start: int, stop: int) -> torch.Tensor:
            asked.add(rank)
            return super().rows(rank, start, stop)

    source = Noting(torch.arange(72.0).reshape(12, 6), DIVISIONS["rows of 4"])
    assemble(source, Division(Shard(0, 1, 2, 12)), 0, 36)
    assert asked == {2, 3}
