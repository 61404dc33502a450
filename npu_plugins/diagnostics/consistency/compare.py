"""Comparing the tensors that the ranks of one group should all have alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import xxhash

from npu_plugins.diagnostics.consistency.checksums import bits, checksums
from npu_plugins.diagnostics.consistency.difference import Difference, Element

CHUNK = 1 << 22
"""Elements that are sent at a time when a tensor that differs is looked at."""


class Named(NamedTuple):
    """A tensor of this rank, and what it is."""

    what: str
    """gradient, parameter or master weight."""
    name: str
    tensor: torch.Tensor


@dataclass
class Copies:
    """Tensors that are the same on all ranks of a group, in an order that is the same too."""

    axis: str
    """What the group is of, such as dp."""
    group: Any
    ranks: tuple[int, ...]
    """Global ranks, in the group's order."""
    device: torch.device
    """Where the group communicates."""
    tensors: list[Named] = field(default_factory=list)


def compare(copies: Copies) -> Difference | None:
    """Return the first tensor in which the ranks of a group differ, the same on all of them; or None.

    All ranks of the group call this. Where nothing differs they exchange 16 bytes, and 16 for each tensor,
    and wait for the device once; where something does, that tensor is sent through the group too. Nans are
    the same, whatever their bits.
    """
    listed = [
        (each.what, each.name, str(each.tensor.dtype), tuple(each.tensor.shape)) for each in copies.tensors
    ]
    digest = xxhash.xxh64_intdigest(repr(listed).encode()) >> 1
    heads = _gathered(torch.tensor([digest, len(listed)], device=copies.device), copies)
    if len({tuple(head) for head in heads.tolist()}) > 1:
        return _other_tensors(listed, copies)
    if not listed:
        return None
    tensors = [each.tensor for each in copies.tensors]
    suspects = _differing(tensors, copies)
    # Made one by one: where all differ, copies of them without their nans' bits would fill the device.
    differing = _differing((_one_nan(tensors[place]) for place in suspects), copies) if suspects else {}
    if not differing:
        return None
    first, column = next(iter(differing.items()))
    named = copies.tensors[list(suspects)[first]]
    return _looked_at(copies, named._replace(tensor=_one_nan(named.tensor)), column, len(differing) - 1)


def _differing(tensors: Iterable[torch.Tensor], copies: Copies) -> dict[int, list[Any]]:
    """Return, by its place among `tensors`, each tensor's checksums on the ranks, where they differ."""
    table = _gathered(checksums(tensors, copies.device), copies).tolist()
    columns = [[tuple(sums) for sums in column] for column in zip(*table, strict=True)]
    return {place: column for place, column in enumerate(columns) if len(set(column)) > 1}


def _one_nan(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with one nan for all, whose bits are what a device makes them.

    Where fp16 overflows, ranks that compute the same may well have nans of other bits.
    """
    tensor = tensor.detach()
    if not tensor.is_floating_point() or tensor.element_size() == 1:
        return tensor
    return tensor.masked_fill(tensor.isnan(), torch.nan)


def _gathered(tensor: torch.Tensor, copies: Copies) -> torch.Tensor:
    """Return the tensors of all ranks of the group, stacked, on the host."""
    found = [torch.empty_like(tensor) for _ in copies.ranks]
    dist.all_gather(found, tensor, group=copies.group)
    return torch.stack(found).cpu()


def _objects(mine: Any, copies: Copies) -> list[Any]:
    found: list[Any] = [None] * len(copies.ranks)
    dist.all_gather_object(found, mine, group=copies.group)
    return found


def _odd(values: Sequence[Any], ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks whose value is not that of more than half of them; all, where there is no such one."""
    value, count = Counter(values).most_common(1)[0]
    if 2 * count <= len(values):
        return tuple(ranks)
    return tuple(rank for rank, own in zip(ranks, values, strict=True) if own != value)


def _other_tensors(listed: list[Any], copies: Copies) -> Difference:
    """Say which tensor is not on all ranks, or has another shape or dtype on some."""
    lists = _objects(listed, copies)
    theirs = [{(what, name): kind for what, name, *kind in each} for each in lists]
    order = list(dict.fromkeys(key for each in lists for key in ((entry[0], entry[1]) for entry in each)))
    differing = [key for key in order if len({str(each.get(key)) for each in theirs}) > 1]
    key = differing[0] if differing else order[0]
    kinds = [str(each.get(key)) for each in theirs]
    told = [
        f"rank {rank} has {'none' if each.get(key) is None else _kind(each[key])}"
        for rank, each in zip(copies.ranks, theirs, strict=True)
    ]
    note = "; ".join(told) if differing else "the ranks have them in different orders"
    odd = _odd(kinds, copies.ranks) if differing else copies.ranks
    return Difference(*key, copies.axis, copies.ranks, odd, max(len(differing) - 1, 0), note=note)


def _kind(kind: Sequence[Any]) -> str:
    dtype, shape = kind
    return f"{list(shape)} of {dtype.removeprefix('torch.')}"


def _looked_at(copies: Copies, named: Named, column: list[Any], further: int) -> Difference:
    """Return how a tensor differs that has these checksums on the ranks."""
    odd = _odd(column, copies.ranks)
    right = next((rank for rank in copies.ranks if rank not in odd), copies.ranks[0])
    tensor = named.tensor.detach()
    element = _first_difference(tensor, right, copies)
    norm = float(torch.linalg.vector_norm(tensor.float()))
    found = _objects((element, norm if math.isfinite(norm) else str(norm)), copies)
    elements = {rank: told for rank, (told, _) in zip(copies.ranks, found, strict=True) if told is not None}
    norms = {rank: float(own) for rank, (_, own) in zip(copies.ranks, found, strict=True)}
    return Difference(
        named.what, named.name, copies.axis, copies.ranks, odd, further, tensor.numel(), norms, elements
    )


def _first_difference(tensor: torch.Tensor, right: int, copies: Copies) -> Element | None:
    """Return where this rank's tensor differs from that of global rank `right`; None if it does not."""
    words = bits(tensor).to(copies.device)
    per_element = max(1, words.numel() // max(1, tensor.numel()))
    count, first, theirs = 0, None, None
    for start in range(0, words.numel(), CHUNK):
        part = words[start : start + CHUNK]
        # As bytes, which every backend sends.
        other = part.clone().view(torch.uint8)
        dist.broadcast(other, right, group=copies.group)
        differs = (other.view(part.dtype) != part).view(-1, per_element).any(1)
        found = int(differs.sum())
        if found and first is None:
            place = int(differs.to(torch.uint8).argmax())
            first = start // per_element + place
            theirs = other.view(part.dtype)[place * per_element : (place + 1) * per_element]
        count += found
    if first is None or theirs is None:
        return None
    ours = words[first * per_element : (first + 1) * per_element]
    index = [int(each) for each in torch.unravel_index(torch.tensor(first), tensor.shape)]
    return Element(
        tuple(index),
        _value(ours, tensor),
        _value(theirs, tensor),
        _hexadecimal(ours),
        _hexadecimal(theirs),
        count,
    )


def _value(words: torch.Tensor, tensor: torch.Tensor) -> float:
    """Return the number that an element's bits stand for; the absolute value of a complex one."""
    element = words.cpu().clone().view(tensor.dtype)
    return float(
        element.abs() if tensor.is_complex() else element.float() if tensor.itemsize < 4 else element
    )


def _hexadecimal(words: torch.Tensor) -> str:
    return words.cpu().clone().view(torch.uint8).numpy().tobytes()[::-1].hex()
