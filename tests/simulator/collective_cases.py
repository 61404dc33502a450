"""One collective as plain data, made by the parent and run by every rank against a plain reference.

Every rank can compute every rank's contribution from the case alone, so the reference needs no communication.
Numbers to be reduced are small integers, exact in every dtype and in every order of summation.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.distributed as dist

REDUCED_DTYPES = ("int8", "int16", "int32", "int64", "float16", "bfloat16", "float32")
CAST_DTYPES = ("bool", "uint8")  # torch_npu widens these for all_reduce
MOVED_DTYPES = (
    *REDUCED_DTYPES,
    *CAST_DTYPES,
    *("uint16", "uint32", "uint64"),
    *("float64", "float8_e4m3fn", "float8_e5m2"),
)
REDUCTIONS = ("sum", "prod", "min", "max", "avg")


@dataclass(frozen=True)
class Case:
    """A collective to run.

    group: the global ranks that take part, ascending. root: index into `group`. sizes: first dimension of
    what each member gives (uneven forms). shape: trailing dimensions. Other ranks only make the group.
    """

    op: str
    dtype: str
    group: tuple[int, ...]
    shape: tuple[int, ...] = (3,)
    reduction: str = "sum"
    root: int = 0
    sizes: tuple[int, ...] = ()
    layout: str = "contiguous"
    async_op: bool = False
    seed: int = 0

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype by name."""
        return getattr(torch, self.dtype)

    @property
    def world(self) -> int:
        """Members of the group."""
        return len(self.group)


def contribution(
    case: Case, member: int, part: int = 0, shape: tuple[int, ...] | None = None
) -> torch.Tensor:
    """What member number `member` gives as its `part`-th tensor: a contiguous CPU tensor."""
    shape = case.shape if shape is None else shape
    generator = torch.Generator().manual_seed(case.seed * 1_000_003 + member * 1009 + part)
    if case.reduction == "prod":
        values = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    else:
        # With at most 8 members no sum leaves the range of int8.
        values = torch.randint(-7, 8, shape, generator=generator)
    if case.dtype in ("uint8", "bool"):
        values = values.abs() if case.dtype == "uint8" else values > 4
    return values.to(case.torch_dtype)


def place(case: Case, tensor: torch.Tensor, device: torch.device, in_list: bool = False) -> torch.Tensor:
    """A copy of `tensor` on `device` in the case's memory layout; "transposed" is for list members only."""
    if case.layout == "offset" and tensor.dim() > 0:
        longer = torch.zeros((tensor.shape[0] + 2, *tensor.shape[1:]), dtype=tensor.dtype, device=device)
        placed = longer[1 : tensor.shape[0] + 1]
    elif case.layout == "transposed" and in_list and tensor.dim() >= 2:
        placed = torch.empty_like(tensor.transpose(0, 1).contiguous(), device=device).transpose(0, 1)
    else:
        placed = torch.empty_like(tensor, device=device)
    placed.copy_(tensor)
    return placed


def garbage(case: Case, shape: tuple[int, ...], device: torch.device, in_list: bool = False) -> torch.Tensor:
    """A tensor to be overwritten, filled with what no contribution holds."""
    filler = torch.full(shape, 1 if case.dtype == "bool" else 99, dtype=torch.uint8).to(case.torch_dtype)
    return place(case, filler, device, in_list)


def reduced(case: Case, tensors: list[torch.Tensor]) -> torch.Tensor:
    """The reference reduction of CPU tensors."""
    if case.dtype == "bool":
        # As in NCCL and gloo: a sum of booleans is their or.
        return (
            torch.stack(tensors).any(0) if case.reduction in ("sum", "max") else torch.stack(tensors).all(0)
        )
    wide = torch.stack(tensors).to(torch.float64)
    match case.reduction:
        case "sum":
            result = wide.sum(0)
        case "prod":
            result = wide.prod(0)
        case "min":
            result = wide.amin(0)
        case "max":
            result = wide.amax(0)
        case "avg":
            # torch_npu divides the sum; a 910B drops the fraction of an integer's quotient.
            mean = wide.sum(0).to(case.torch_dtype) / len(tensors)
            result = mean.to(torch.float64).trunc() if not case.torch_dtype.is_floating_point else mean
    return result.to(case.torch_dtype)


def reduce_op(case: Case) -> dist.ReduceOp:
    """torch's name of the case's reduction."""
    name = {"prod": "PRODUCT"}.get(case.reduction, case.reduction.upper())
    return getattr(dist.ReduceOp, name)


@functools.cache
def group_of(ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
    """The group of these global ranks, made once; every rank of the world must ask for it."""
    if ranks == tuple(range(dist.get_world_size())):
        return dist.group.WORLD
    return dist.new_group(list(ranks))


def same(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal shape, dtype and bits."""
    actual = actual.detach().cpu().contiguous()
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    return torch.equal(
        actual.reshape(-1).view(torch.uint8), expected.contiguous().reshape(-1).view(torch.uint8)
    )
