"""What travels between stages: nested tensors taken apart, and the description that lets a peer make room."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from npu_plugins.pipeline.errors import PipelineError


class Slot(NamedTuple):
    """What it takes to make a tensor like one that is sent."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    """Whether its gradient comes back."""

    def empty(self, device: torch.device) -> torch.Tensor:
        """Return room for it."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


class Layout(NamedTuple):
    """The structure of an activation: what it is made of, with a `Slot` in place of each tensor."""

    skeleton: Any
    slots: tuple[Slot, ...]
    """The tensors, in the order in which they travel."""

    def gradients(self) -> list[Slot]:
        """The tensors whose gradients come back, in order."""
        return [slot for slot in self.slots if slot.requires_grad]

    def fill(self, tensors: Iterable[torch.Tensor]) -> Any:
        """Return the activation with these tensors in its slots."""
        following = iter(tensors)

        def put(leaf: Any) -> Any:
            return next(following) if isinstance(leaf, Slot) else leaf

        return pytree.tree_map(put, self.skeleton, is_leaf=_is_slot)


def take_apart(activation: Any, what: str) -> tuple[Layout, list[torch.Tensor]]:
    """Return the layout of `activation` and its tensors.

    Args:
        activation: dicts, tuples and lists of tensors and plain values.
        what: its name, for the error.

    Raises:
        PipelineError: it holds something that cannot be sent.
    """
    tensors: list[torch.Tensor] = []
    slots: list[Slot] = []

    def take(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
            slots.append(Slot(tuple(leaf.shape), leaf.dtype, leaf.requires_grad))
            return slots[-1]
        if leaf is None or isinstance(leaf, (bool, int, float, complex, str, bytes)):
            return leaf
        raise PipelineError(
            f"{what} holds a {type(leaf).__module__}.{type(leaf).__qualname__}; what goes from stage to "
            "stage is made of tensors, plain values, tuples, lists and dicts"
        )

    return Layout(pytree.tree_map(take, activation), tuple(slots)), tensors


def _is_slot(value: Any) -> bool:
    return isinstance(value, Slot)


def as_leaves(tensors: Iterable[torch.Tensor], slots: Iterable[Slot]) -> list[torch.Tensor]:
    """Return the tensors as beginnings of a new graph, which collect gradients where their slots ask for
    it."""
    return [
        tensor.detach().requires_grad_(slot.requires_grad)
        for tensor, slot in zip(tensors, slots, strict=True)
    ]


def digest(value: Any) -> int:
    """Return 62 bits that stand for the structure, shapes, dtypes and plain values of a micro-batch's
    input."""
    leaves, tree = pytree.tree_flatten(value)
    told = [
        (tuple(leaf.shape), str(leaf.dtype)) if isinstance(leaf, torch.Tensor) else repr(leaf)
        for leaf in leaves
    ]
    text = repr((str(tree), told)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 2
