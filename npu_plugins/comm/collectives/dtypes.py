"""What is done with a dtype that a backend does not communicate, or with an op that it does not know.

HCCL on Ascend 910 and 910B (Atlas training, A2, A3) reduces int8, int32, int64, float16, float32 and, from
910B on, bfloat16, with SUM, PRODUCT (not bfloat16), MIN and MAX; it copies no complex numbers and no float8.
What torch_npu does beside it is left aside where it is wrong: the AVG of bool is their OR, and PRODUCT of
int16 or bfloat16 ends the process from the device's stream. Sources: CANN 8.5, HCCL's interfaces
(HcclAllReduce, HcclReduceScatter); torch_npu 2.13, ProcessGroupHCCL.cpp (checkSupportedDataType,
getHcclReduceOp).

=================  ==================================================================================
dtype              what is done on HCCL
=================  ==================================================================================
float16, float32   as they are
bfloat16           as it is; PRODUCT in float32, rounded once
float64            two steps: the ranks' elements are sent as bytes and reduced in float64
complex64          SUM and AVG as pairs of float32; PRODUCT in two steps
complex128         two steps, SUM, AVG and PRODUCT
float8_*           two steps, reduced in float32, rounded once
int8, int32        as they are; AVG in int32 or int64
int64              as it is; AVG is the SUM divided
uint8, int16       in int32, exact: the result wraps around as that of a sum in the dtype does
uint16, uint32     in int32 or int64, exact likewise
uint64             as int64, exact: modulo 2⁶⁴ for SUM and PRODUCT, with the sign bit turned for MIN and MAX
bool               SUM, MAX, BOR: or; PRODUCT, MIN, BAND: and; BXOR: parity of the sum; AVG is refused
BAND, BOR, BXOR    of whole numbers: two steps
=================  ==================================================================================

The AVG of whole numbers is rounded towards zero. Copying collectives take every dtype: a tensor whose dtype
the backend does not copy goes as whole numbers of its size, the same memory seen otherwise, so every bit
arrives. gloo, which knows no AVG, is served by the same rules; other backends do what torch lets them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from npu_plugins.comm.errors import CommError

SUM, AVG, PRODUCT, MIN, MAX = ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX
BAND, BOR, BXOR = ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR
ARITHMETIC = (SUM, AVG, PRODUCT, MIN, MAX)
BITWISE = (BAND, BOR, BXOR)

COMMON = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64})
"""What every backend adds up and copies by itself."""

_FOUR = frozenset({SUM, PRODUCT, MIN, MAX})
_WHOLE = frozenset({*_FOUR, *BITWISE})
REDUCED: dict[str, dict[torch.dtype, frozenset[Any]]] = {
    "hccl": {
        **dict.fromkeys((torch.int8, torch.int32, torch.int64), _FOUR),
        **dict.fromkeys((torch.float16, torch.float32), frozenset(ARITHMETIC)),
        torch.bfloat16: frozenset({SUM, AVG, MIN, MAX}),
    },
    "gloo": {
        **dict.fromkeys((torch.uint8, torch.int8, torch.int32, torch.int64), _WHOLE),
        **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32, torch.float64), _FOUR),
    },
}
"""What a backend reduces by itself: dtype -> ops. A backend that is not here is left to torch."""

CARRIERS = {
    "hccl": {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64},
    "gloo": {1: torch.uint8, 2: torch.float16, 4: torch.int32, 8: torch.int64},
}
"""By size of an element: the dtype as which a backend copies elements of that size, whatever they are."""

_WIDER = {
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.int32: torch.int64,
    torch.uint32: torch.int64,
}
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_SIGN_BIT = -(2**63)

Encode = Callable[[torch.Tensor], torch.Tensor]
Decode = Callable[[torch.Tensor, int], torch.Tensor]


class Route(NamedTuple):
    """How a reduction is done: on flat tensors, encode, reduce with `op`, decode with the number of ranks."""

    dtype: torch.dtype
    """Of what is reduced."""
    op: Any
    encode: Encode
    decode: Decode
    in_two_steps: bool = False
    """The backend does not reduce it: elements are sent, then encoded, reduced and decoded by each rank."""


def route(backend: str, dtype: torch.dtype, op: Any) -> Route | None:
    """Return how `op` of `dtype` is done on `backend`; None: the backend does it by itself.

    Raises:
        CommError: the op means nothing for this dtype.
    """
    able = REDUCED.get(backend)
    op = _plain(op)
    if able is None or op is None or op in able.get(dtype, ()):
        return None
    _check_meaning(dtype, op)
    other = _converted(dtype, op)
    if other is not None and other.op in able.get(other.dtype, ()):
        return other
    return _in_two_steps(dtype, op)


def carrier(tensor: torch.Tensor, backend: str) -> torch.Tensor:
    """Return the memory of `tensor` in a dtype that `backend` copies; the tensor itself where it can be.

    Complex numbers get a last dimension of two.
    """
    if tensor.dtype in COMMON or backend not in CARRIERS:
        return tensor
    plain = tensor.detach()  # autograd takes no view in another dtype
    real = torch.view_as_real(plain) if plain.is_complex() else plain
    return real.view(CARRIERS[backend][real.element_size()])


def uncarried(received: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return flat elements that came as a carrier as what they are, flat."""
    if dtype.is_complex:
        return torch.view_as_complex(received.view(dtype.to_real()).view(-1, 2))
    return received.view(dtype)


def reduce_rows(rows: list[torch.Tensor], how: Route) -> torch.Tensor:
    """Reduce the ranks' elements, given rank by rank, on this rank.

    Rank by rank and not with one reduction along a dim: so every rank that does it gets the same bits, and
    the device needs no more than the op of two tensors.
    """
    total = how.encode(rows[0])
    for row in rows[1:]:
        total = _PAIRWISE[how.op](total, how.encode(row))
    return how.decode(total, len(rows))


_PAIRWISE = {
    SUM: torch.add,
    PRODUCT: torch.mul,
    MIN: torch.minimum,
    MAX: torch.maximum,
    BAND: torch.bitwise_and,
    BOR: torch.bitwise_or,
    BXOR: torch.bitwise_xor,
}


def _plain(op: Any) -> Any:
    """The member of torch's enum; None for what is none of ours, such as PREMUL_SUM."""
    return next((known for known in (*ARITHMETIC, *BITWISE) if op == known), None)


def _check_meaning(dtype: torch.dtype, op: Any) -> None:
    if dtype == torch.bool and op == AVG:
        mend = "take the average of tensor.float(), or ReduceOp.MAX for whether any rank has True"
    elif dtype.is_complex and op in (MIN, MAX):
        mend = "complex numbers have no order; reduce torch.view_as_real(tensor)"
    elif op in BITWISE and (dtype.is_floating_point or dtype.is_complex):
        mend = (
            "only whole numbers and bool have bits to combine; reduce a view such as tensor.view(torch.int32)"
        )
    else:
        return
    raise CommError(f"ReduceOp.{op.name} of {dtype} means nothing: {mend}")


def _converted(dtype: torch.dtype, op: Any) -> Route | None:
    """A way by another dtype or op, with the same result."""
    if dtype == torch.bool:
        return _of_bool(op)
    if op in BITWISE:
        return None
    summed = SUM if op == AVG else op
    if dtype in _WIDER:
        wider = _WIDER[dtype]
        return Route(
            wider, summed, partial(_widen, wider=wider), partial(_narrow, dtype=dtype, mean=op == AVG)
        )
    if dtype == torch.uint64:
        return _of_uint64(op)
    if dtype.is_complex:
        if op == PRODUCT:
            return None
        pairs = partial(_complex, mean=op == AVG)
        return Route(dtype.to_real(), SUM, lambda tensor: torch.view_as_real(tensor).view(-1), pairs)
    if op == AVG:
        return Route(dtype, SUM, _same, _mean)
    if dtype in (torch.bfloat16, torch.float16):
        return Route(torch.float32, op, torch.Tensor.float, lambda total, ranks: total.to(dtype))
    return None


def _in_two_steps(dtype: torch.dtype, op: Any) -> Route:
    decode: Decode = _mean if op == AVG else _first
    op = SUM if op == AVG else op
    if dtype in _SIGNED:  # torch has no bitwise ops for these; the bits are the same
        return Route(
            dtype,
            op,
            lambda tensor: tensor.view(_SIGNED[dtype]),
            lambda total, ranks: total.view(dtype),
            True,
        )
    if dtype.is_floating_point and dtype.itemsize == 1:
        return Route(dtype, op, torch.Tensor.float, lambda total, ranks: decode(total, ranks).to(dtype), True)
    return Route(dtype, op, _same, decode, True)


def _of_bool(op: Any) -> Route:
    if op == BXOR:
        return Route(
            torch.int32, SUM, lambda tensor: tensor.to(torch.int32), lambda total, ranks: (total & 1).bool()
        )
    largest = op in (SUM, MAX, BOR)
    return Route(
        torch.int8,
        MAX if largest else MIN,
        lambda tensor: tensor.view(torch.int8),
        lambda total, ranks: total.view(torch.bool),
    )


def _of_uint64(op: Any) -> Route:
    if op in (MIN, MAX):  # with the sign bit turned, signed order is that of the unsigned numbers
        return Route(
            torch.int64,
            op,
            lambda tensor: tensor.view(torch.int64) ^ _SIGN_BIT,
            lambda total, ranks: (total ^ _SIGN_BIT).view(torch.uint64),
        )
    whole = _unsigned_quotient if op == AVG else _first
    return Route(
        torch.int64,
        SUM if op == AVG else op,
        lambda tensor: tensor.view(torch.int64),
        lambda total, ranks: whole(total, ranks).view(torch.uint64),
    )


def _widen(tensor: torch.Tensor, wider: torch.dtype) -> torch.Tensor:
    signed = _SIGNED.get(tensor.dtype)
    if signed is None:
        return tensor.to(wider)
    return tensor.view(signed).to(wider) & (2 ** (8 * tensor.element_size()) - 1)


def _narrow(total: torch.Tensor, ranks: int, dtype: torch.dtype, mean: bool) -> torch.Tensor:
    """Bring a sum back into its dtype, modulo its range, whatever a device makes of what is too large."""
    if mean:
        total = torch.div(total, ranks, rounding_mode="trunc")
    count = 2 ** (8 * dtype.itemsize)
    if dtype == torch.uint8:
        return (total & (count - 1)).to(dtype)
    signed = _SIGNED.get(dtype, dtype)
    return (((total + count // 2) & (count - 1)) - count // 2).to(signed).view(dtype)


def _unsigned_quotient(total: torch.Tensor, ranks: int) -> torch.Tensor:
    """An unsigned number in an int64, divided: half of it has no sign and can be; the rest is put right."""
    half = (total >> 1) & (2**63 - 1)
    quotient = torch.div(half, ranks, rounding_mode="floor") * 2
    return quotient + (total - quotient * ranks >= ranks).to(torch.int64)


def _complex(total: torch.Tensor, ranks: int, mean: bool) -> torch.Tensor:
    return torch.view_as_complex((total / ranks if mean else total).view(-1, 2))


def _mean(total: torch.Tensor, ranks: int) -> torch.Tensor:
    if total.dtype.is_floating_point or total.dtype.is_complex:
        return total / ranks
    return torch.div(total, ranks, rounding_mode="trunc")


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _first(total: torch.Tensor, ranks: int) -> torch.Tensor:
    return total
