"""Nested batches: dicts, lists and tuples of tensors and plain values, taken apart and put together again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from npu_plugins.comm.errors import CommError

PLAIN = (type(None), bool, int, float, complex, str, bytes)


class TensorSlot(NamedTuple):
    """Where a tensor was, and what it takes to make one like it."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's elements."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def walk(batch: Any, where: str = "batch") -> Iterator[tuple[str, Any]]:
    """Yield each tensor and plain value of `batch` with the expression that reaches it: ``batch['x'][0]``.

    An empty container is yielded itself.

    Raises:
        CommError: something in it is neither container, dense tensor nor plain value.
    """
    if isinstance(batch, torch.Tensor):
        if batch.layout != torch.strided or batch.is_nested or batch.is_meta:
            raise CommError(f"{where} is no dense tensor with data ({_kind(batch)}); make it one")
        yield where, batch.detach()
    elif type(batch) in PLAIN:
        yield where, batch
    elif isinstance(batch, (Mapping, list, tuple)):
        entries = list(batch.items()) if isinstance(batch, Mapping) else list(enumerate(batch))
        if not entries:
            yield where, () if isinstance(batch, tuple) else {} if isinstance(batch, Mapping) else []
        for key, value in entries:
            yield from walk(value, f"{where}[{key!r}]")
    else:
        raise CommError(
            f"{where} is a {type(batch).__module__}.{type(batch).__qualname__}; a batch is made of dicts, "
            "lists, tuples, tensors and plain values (None, numbers, strings): convert it, an array with "
            "torch.from_numpy"
        )


def take_apart(batch: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return `batch` with a `TensorSlot` in place of each tensor, and the tensors in that order.

    Mappings become dicts, so that a batch looks the same on every rank whatever class its loader gave it.

    Raises:
        CommError: as `walk`.
    """
    tensors = [leaf for _, leaf in walk(batch) if isinstance(leaf, torch.Tensor)]

    def skeleton(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return TensorSlot(tuple(value.shape), value.dtype)
        if isinstance(value, Mapping):
            return {key: skeleton(item) for key, item in value.items()}
        return _rebuilt(value, [skeleton(item) for item in value]) if _is_sequence(value) else value

    return skeleton(batch), tensors


def put_together(skeleton: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Return the batch that `take_apart` took apart, with the next of `tensors` in each slot."""
    if isinstance(skeleton, TensorSlot):
        return next(tensors)
    if isinstance(skeleton, dict):
        return {key: put_together(item, tensors) for key, item in skeleton.items()}
    if _is_sequence(skeleton):
        return _rebuilt(skeleton, [put_together(item, tensors) for item in skeleton])
    return skeleton


def slots(skeleton: Any) -> Iterator[TensorSlot]:
    """Yield the slots of a skeleton in order."""
    if isinstance(skeleton, TensorSlot):
        yield skeleton
    elif isinstance(skeleton, dict) or _is_sequence(skeleton):
        for item in skeleton.values() if isinstance(skeleton, dict) else skeleton:
            yield from slots(item)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as a flat uint8 tensor on its device."""
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def first_difference(mine: Any, theirs: Any) -> tuple[str, str, str] | None:
    """Return where two batches first differ and what stands there in each; None if they are equal to the bit.

    Tensors may be on different devices. The order of a mapping's keys does not matter.
    """
    left, right = dict(walk(mine)), dict(walk(theirs))
    for where in [*left, *(where for where in right if where not in left)]:
        if where not in left or where not in right:
            told = ["present" if where in side else "missing" for side in (left, right)]
            return where, told[0], told[1]
        found = _difference(left[where], right[where])
        if found:
            return where + found[0], found[1], found[2]
    return None


def _difference(mine: Any, theirs: Any) -> tuple[str, str, str] | None:
    if not (isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor)):
        same = type(mine) is type(theirs) and repr(mine) == repr(theirs)
        return None if same else ("", _told(mine), _told(theirs))
    if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
        return "", _told(mine), _told(theirs)
    mine, theirs = mine.cpu(), theirs.cpu()
    if not mine.numel():
        return None
    unequal = (as_bytes(mine) != as_bytes(theirs)).view(mine.numel(), -1).any(1)
    if not unequal.any():
        return None
    place = torch.unravel_index(unequal.int().argmax(), mine.shape)
    index = ", ".join(str(int(i)) for i in place)
    return f"[{index}]" if index else "", str(mine[place].item()), str(theirs[place].item())


def _told(value: Any) -> str:
    return _kind(value) if isinstance(value, torch.Tensor) else repr(value)


def _kind(tensor: torch.Tensor) -> str:
    special = "meta " if tensor.is_meta else "" if tensor.layout == torch.strided else f"{tensor.layout} "
    return f"{special}{tensor.dtype} of shape {list(tensor.shape)}"


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not isinstance(value, TensorSlot)


def _rebuilt(like: Any, items: list[Any]) -> Any:
    """A sequence of `like`'s type with `items`; named tuples take them one by one."""
    if isinstance(like, list):
        return items
    return type(like)(*items) if hasattr(like, "_fields") else tuple(items)
