"""Checksums of a tensor's bits, made where it lies."""

from __future__ import annotations

from collections.abc import Iterable

import torch

WIDTH = 256
"""Elements of a row, as which a tensor is summed."""
PIECE = 1 << 22
"""Words summed at a time, a multiple of `WIDTH`: devices first make int64 of all that they sum so."""
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Whole numbers by their size in bytes."""


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bits as whole numbers, flat: of its elements, or of halves of those above 4 bytes.

    A view where the tensor is contiguous, else a copy.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(WORDS[min(flat.element_size(), 4)])


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Return two sums of a tensor's bits, ``[2]`` in int64 on its device, without waiting for it.

    Elements are weighted by their column, and by their row, of a matrix of `WIDTH` columns. All is exact,
    modulo 2⁶⁴: weights are odd, so that any single change of any bits changes both sums, and two elements
    that change places change at least one. Memory besides a contiguous tensor: 8 bytes for each word of a
    `PIECE` (32 MiB), whatever the tensor's size.
    """
    words = bits(tensor)
    sums = torch.zeros(2, dtype=torch.int64, device=words.device)
    for start in range(0, words.numel(), PIECE):
        piece, row = words[start : start + PIECE], start // WIDTH
        whole = piece.numel() // WIDTH * WIDTH
        if whole:
            sums += _sums(piece[:whole].view(-1, WIDTH), row)
        if whole < piece.numel():
            sums += _sums(piece[whole:].view(1, -1), row + whole // WIDTH)
    return sums


def checksums(tensors: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the checksums of several tensors, ``[n, 2]`` in int64 on `device`; one is held at a time."""
    sums = [checksum(tensor).to(device) for tensor in tensors]
    return torch.stack(sums) if sums else torch.zeros(0, 2, dtype=torch.int64, device=device)


def _sums(matrix: torch.Tensor, first_row: int) -> torch.Tensor:
    columns = matrix.sum(0, dtype=torch.int64)
    rows = matrix.sum(1, dtype=torch.int64)
    by_column = columns * _odd(columns.numel(), 0, matrix.device)
    by_row = rows * _odd(rows.numel(), first_row, matrix.device)
    return torch.stack([by_column.sum(), by_row.sum()])


def _odd(count: int, first: int, device: torch.device) -> torch.Tensor:
    return torch.arange(first, first + count, dtype=torch.int64, device=device) * 2 + 1
