"""Tensors of every dtype for each rank, and what a reduction of them must be, by numpy or whole precision."""

from __future__ import annotations

import numpy as np
import torch

WHOLE = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TINY = (torch.float8_e4m3fn, torch.float8_e5m2)
COMPLEX = (torch.complex64, torch.complex128)
ALL = (torch.bool, *WHOLE, *REAL, *TINY, *COMPLEX)
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")

_NUMPY = {"SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum} | {
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


def values(dtype: torch.dtype, rank: int, count: int) -> torch.Tensor:
    """What rank `rank` gives, on the CPU: all bits of whole numbers; of others, numbers whose sums are exact.

    float64 and complex128 get numbers whose sums are not, to see that they are added in their own precision
    and in the order of the ranks.
    """
    chance = np.random.default_rng([rank, count])
    if dtype == torch.bool:
        return torch.from_numpy(chance.integers(0, 2, count) == 1)
    if dtype in WHOLE:
        raw = torch.from_numpy(chance.integers(0, 256, count * dtype.itemsize).astype(np.uint8))
        return raw.view(dtype)
    if dtype == torch.float64:
        return torch.from_numpy(chance.standard_normal(count))
    if dtype == torch.complex128:
        return torch.from_numpy(chance.standard_normal(count) + 1j * chance.standard_normal(count))
    small = torch.from_numpy(chance.integers(-2, 3, count)).double()
    if dtype == torch.complex64:
        return torch.complex(small, small.flip(0)).to(dtype)
    return small.to(dtype)


def meaningless(dtype: torch.dtype, op: str) -> bool:
    """Whether there is nothing that the op could mean for the dtype."""
    if dtype == torch.bool:
        return op == "AVG"
    if dtype in COMPLEX:
        return op not in ("SUM", "AVG", "PRODUCT")
    return dtype not in WHOLE and op in ("BAND", "BOR", "BXOR")


def reduced(dtype: torch.dtype, op: str, ranks: int, count: int) -> torch.Tensor:
    """What all ranks' values reduce to, on the CPU."""
    rows = [values(dtype, rank, count) for rank in range(ranks)]
    if dtype == torch.bool:
        table = np.stack([row.numpy() for row in rows])
        found = {
            "SUM": table.any(0),
            "MAX": table.any(0),
            "BOR": table.any(0),
            "PRODUCT": table.all(0),
            "MIN": table.all(0),
            "BAND": table.all(0),
            "BXOR": table.sum(0) % 2 == 1,
        }[op]
        return torch.from_numpy(found)
    if dtype in WHOLE:
        return _whole(rows, dtype, op)
    return _real(rows, dtype, op)


def _whole(rows: list[torch.Tensor], dtype: torch.dtype, op: str) -> torch.Tensor:
    """numpy in the dtype itself; the average in Python's numbers, which have no end."""
    table = [row.numpy() for row in rows]
    if op != "AVG":
        with np.errstate(over="ignore"):
            return torch.from_numpy(_NUMPY[op].reduce(np.stack(table), axis=0, dtype=table[0].dtype))
    sums = [sum(int(row[index]) for row in table) for index in range(len(table[0]))]
    if dtype in (torch.int64, torch.uint64):  # summed in 64 bits, as any backend does
        sums = [each % 2**64 for each in sums]
        sums = [each - 2**64 if dtype == torch.int64 and each >= 2**63 else each for each in sums]
    means = [abs(each) // len(rows) * (1 if each >= 0 else -1) for each in sums]
    return torch.from_numpy(np.array(means, dtype=table[0].dtype))


def _real(rows: list[torch.Tensor], dtype: torch.dtype, op: str) -> torch.Tensor:
    wide = torch.complex128 if dtype in COMPLEX else torch.float64
    table = np.stack([row.to(wide).numpy() for row in rows])
    found = _NUMPY["SUM" if op == "AVG" else op].reduce(table, axis=0)
    return torch.from_numpy(found / len(rows) if op == "AVG" else found).to(dtype)


def same(found: torch.Tensor, wanted: torch.Tensor, last_bits: bool = True) -> bool:
    """Whether two tensors hold the same numbers of the same dtype (0.0 is -0.0).

    last_bits: False for float64 and complex128 that were rounded in another order.
    """
    found = found.cpu()
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    if found.dtype in (*WHOLE, torch.bool):
        return bool(np.array_equal(found.numpy(), wanted.numpy()))
    wide = torch.complex128 if found.is_complex() else torch.float64
    if not last_bits and found.dtype in (torch.float64, torch.complex128):
        return bool(torch.allclose(found, wanted, rtol=1e-14, atol=1e-15))
    return bool(torch.equal(found.to(wide), wanted.to(wide)))
