"""Walk large flat tensors in pieces that fit the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch

TILE_ELEMENTS = 1 << 20


def tiles(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield aligned views over tensors of one size, each of at most `TILE_ELEMENTS` elements.

    An optimizer partition can be gigabytes long; a piece at a time keeps the fp32 temporaries of an
    update small. Tensors that are not all contiguous are yielded whole, because a flat view of them
    does not exist.
    """
    sizes = {tensor.numel() for tensor in tensors}
    if len(sizes) != 1:
        raise ValueError(f"An optimizer update needs tensors of one size, not {sorted(sizes)} elements.")
    if not all(tensor.is_contiguous() for tensor in tensors):
        yield tensors
        return
    yield from zip(*(tensor.view(-1).split(TILE_ELEMENTS) for tensor in tensors), strict=True)


def in_fp32(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if it is fp32, else an fp32 copy."""
    return tensor.to(torch.float32)


def write_back(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Round `value` into `tensor`, unless they are the same tensor (see `in_fp32`)."""
    if value is not tensor:
        tensor.copy_(value)
