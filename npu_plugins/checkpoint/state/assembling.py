"""What a rank needs of a parameter, put together from slices of what ranks of another layout held.

Everything is asked for in rows: indices of the first dim of a tensor as one rank holds it. Of a flat piece of
a parameter only the rows around it are read, and of these only what the tensor-parallel part needs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from npu_plugins.pipeline.checkpoints.division import Division
from npu_plugins.tensor_parallel.shard import Shard


class Rows(Protocol):
    """Gives the rows of one tensor of a checkpoint."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole, as the Hugging Face model has it."""

    @property
    def division(self) -> Division:
        """How the parts are held that rows are read of; the first rank's."""

    def rows(self, rank: int, start: int, stop: int) -> torch.Tensor:
        """Return rows of a tensor-parallel rank's part, on the CPU."""


def assemble(source: Rows, wanted: Division, start: int, length: int) -> torch.Tensor:
    """Return a flat piece of a parameter as one rank holds it.

    Args:
        source: of the tensor.
        wanted: how this rank holds the parameter.
        start: where the piece begins in this rank's part, flattened.
        length: its elements.
    """
    shape = held_shape(wanted.local_shape(source.shape))
    row = math.prod(shape[1:])
    first, last = start // row, -(-(start + length) // row)
    if _alike(source.division, wanted):
        rank = 0 if wanted.shard is None else wanted.shard.rank
        rows = source.rows(rank, first, last)
    else:
        rows = _gathered(source, wanted, first, last)
    return rows.reshape(-1)[start - first * row :][:length]


def held_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape that has rows: a single number is one row of one."""
    return tuple(shape) or (1,)


def _alike(one: Division, other: Division) -> bool:
    """Whether both are held the same way, so that flat pieces are the same."""
    if one.transposed != other.transposed:
        return False
    return _first(one.shard) == _first(other.shard)


def _first(shard: Shard | None) -> Shard | None:
    return shard if shard is None else shard.of_rank(0)


@dataclass(frozen=True)
class _Part:
    """A part of a whole tensor, whose dims are in the order in which the reader wants them."""

    shard: Shard | None
    shape: tuple[int, ...]
    """Of the whole."""

    def segments(self, dim: int) -> list[tuple[int, int, int]]:
        """Return (start, stop) in the whole, and where that begins in the part, of its pieces along a dim."""
        if self.shard is None or self.shard.dim != dim:
            return [(0, self.shape[dim], 0)]
        found, offset = [], 0
        for start, stop in self.shard.slices:
            found.append((start, stop, offset))
            offset += stop - start
        return found

    def window(self, dim: int, first: int, last: int) -> list[tuple[int, int, int]]:
        """Return the segments along a dim that are within a window of the part, counted from its begin."""
        found = []
        for start, stop, offset in self.segments(dim):
            low, high = max(first, offset), min(last, offset + stop - start)
            if low < high:
                found.append((start + low - offset, start + high - offset, low - first))
        return found


def _gathered(source: Rows, wanted: Division, first: int, last: int) -> torch.Tensor:
    """Return rows of this rank's part from parts that are divided or held otherwise; zero where padded."""
    whole = tuple(source.shape[::-1] if wanted.transposed else source.shape)
    whole = held_shape(whole)
    mine = _Part(wanted.shard, whole)
    local = held_shape(wanted.local_shape(source.shape))
    target: torch.Tensor | None = None
    there = source.division
    for rank in range(1 if there.shard is None else there.shard.size):
        shard = None if there.shard is None else there.shard.of_rank(rank)
        read = _reader(source, rank)
        if there.transposed != wanted.transposed:
            read = _turned(source, rank)
            shard = None if shard is None else replace(shard, dim=1 - shard.dim)
        theirs = _Part(shard, whole)
        for places in itertools.product(*_overlaps(mine, theirs, first, last)):
            (from_, to, count), *others = places
            block = read(from_, from_ + count)
            if target is None:
                target = block.new_zeros((last - first, *local[1:]))
            part = target.narrow(0, to, count)
            for dim, (begin, into, number) in enumerate(others, start=1):
                block, part = block.narrow(dim, begin, number), part.narrow(dim, into, number)
            part.copy_(block)
    if target is None:  # nothing but padding
        target = _reader(source, 0)(0, 1).new_zeros((last - first, *local[1:]))
    return target


def _overlaps(mine: _Part, theirs: _Part, first: int, last: int) -> list[list[tuple[int, int, int]]]:
    """Return, by dim, what both parts have: where it begins in theirs and in mine, and how much it is."""
    found = []
    for dim in range(len(mine.shape)):
        own = mine.window(0, first, last) if dim == 0 else mine.segments(dim)
        both = []
        for start, stop, offset in own:
            for start_there, stop_there, offset_there in theirs.segments(dim):
                low, high = max(start, start_there), min(stop, stop_there)
                if low < high:
                    both.append((offset_there + low - start_there, offset + low - start, high - low))
        found.append(both)
    return found


def _reader(source: Rows, rank: int) -> Callable[[int, int], torch.Tensor]:
    return lambda start, stop: source.rows(rank, start, stop)


def _turned(source: Rows, rank: int) -> Callable[[int, int], torch.Tensor]:
    """Read a part that is held transposed, whose rows here are its columns there: all of it."""
    shard = source.division.shard
    division = replace(source.division, shard=None if shard is None else shard.of_rank(rank))
    count = division.local_shape(source.shape)[0]
    held: list[torch.Tensor] = []

    def read(start: int, stop: int) -> torch.Tensor:
        if not held:
            held.append(source.rows(rank, 0, count).t())
        return held[0][start:stop]

    return read
