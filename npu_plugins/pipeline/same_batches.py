"""Ranks that share one replica read the same micro-batches: those of a tensor-parallel group, and the first
and the last stage."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npu_plugins.comm import CommError, ProcessMesh
from npu_plugins.comm.structure import PLAIN, as_bytes, first_difference
from npu_plugins.pipeline.batches import MicroBatch
from npu_plugins.pipeline.control import Control
from npu_plugins.pipeline.errors import PipelineError

_NOTHING = -(2**63)
"""Less than every fingerprint and its negative: the word of a rank that has nothing to compare."""


def fingerprints(batches: Sequence[MicroBatch], mesh: ProcessMesh) -> list[int]:
    """Return numbers by which `differing` sees, in the largest of all ranks', who read something else.

    For each replica they are x and −x of the inputs, and x and −x of the labels: x is the same on all ranks
    if and only if the largest x and the largest −x cancel. What a rank does not give (None for the labels
    on the first stage, say) is not compared.

    Args:
        batches: that this rank read for the step; empty where it reads none.
        mesh: of the job. With one rank to a replica there is nothing to compare.
    """
    if mesh.size("model") == 1:
        return []
    numbers = [_NOTHING] * (4 * mesh.size("dp"))
    for part in range(2):
        found = [batch[part] for batch in batches if batch[part] is not None]
        if found:
            value = content(found)
            at = 4 * mesh.rank("dp") + 2 * part
            numbers[at : at + 2] = value, -value
    return numbers


def differing(largest: Sequence[int]) -> list[int]:
    """Return the replicas whose ranks read different micro-batches, of the largest of all fingerprints."""
    pairs = list(zip(largest[::2], largest[1::2], strict=True))
    return sorted({index // 2 for index, (up, down) in enumerate(pairs) if up != _NOTHING and up != -down})


def explain(batches: Sequence[MicroBatch], mesh: ProcessMesh, control: Control) -> PipelineError | None:
    """Say, on one rank of each replica whose ranks differ, what it read and what another one.

    All ranks of the world call this, once `differing` has found something: the ranks compare notes.

    Args:
        batches: as for `fingerprints`.
        mesh: of the job.
        control: the connection of all ranks.

    Returns:
        The error of this rank; None on all others.
    """
    notes = control.everyone([[None if part is None else content(part) for part in each] for each in batches])
    readers = [rank for rank in mesh.ranks("model") if notes[rank]]
    place = _first_place(notes, readers)
    mine = None
    if place is not None and mesh.global_rank in place[:2]:
        _, _, index, part = place
        mine = batches[index][part]
    theirs = control.everyone(mine)
    if place is None or mesh.global_rank != place[1]:
        return None
    first, _, index, part = place
    name = ("inputs", "labels")[part]
    return PipelineError(
        f"{name} of micro-batch {index}{_told(name, mine, theirs[first], first)}; all ranks of a replica "
        "read the same data: give the sampler num_replicas=mesh.size('dp'), rank=mesh.rank('dp') and one "
        "seed on all ranks"
    )


def content(value: Any) -> int:
    """Return 62 bits that stand for all that nested tensors and plain values hold, wherever they lie."""
    found = hashlib.blake2b(digest_size=8)
    leaves = [(pytree.keystr(path), leaf) for path, leaf in pytree.tree_flatten_with_path(value)[0]]
    for where, leaf in sorted(leaves, key=lambda pair: pair[0]):
        if isinstance(leaf, torch.Tensor):
            found.update(f"{where}: {leaf.dtype} {tuple(leaf.shape)};".encode())
            found.update(as_bytes(leaf.detach().cpu()).numpy())
        else:  # of other objects no more is known than their type
            told = repr(leaf) if type(leaf) in PLAIN else ""
            found.update(f"{where}: {type(leaf).__name__} {told};".encode())
    return int.from_bytes(found.digest(), "big") >> 2


def _first_place(notes: Sequence[Any], readers: Sequence[int]) -> tuple[int, int, int, int] | None:
    """Return two ranks, the micro-batch and the part in which they are the first to differ."""
    for index in range(min((len(notes[rank]) for rank in readers), default=0)):
        for part in range(2):
            have = [rank for rank in readers if notes[rank][index][part] is not None]
            for rank in have[1:]:
                if notes[rank][index][part] != notes[have[0]][index][part]:
                    return have[0], rank, index, part
    return None


def _told(name: str, mine: Any, theirs: Any, rank: int) -> str:
    try:
        found = first_difference(mine, theirs)
    except CommError:  # something of a kind whose values cannot be shown
        found = None
    if found is None:
        return f" are not those of rank {rank}"
    where, here, there = found
    return f": {name}{where.removeprefix('batch')} is {here}, but {there} on rank {rank}"
