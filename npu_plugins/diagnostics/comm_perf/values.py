"""What ranks send in a test, and what must come out of it, to the bit.

Every value is a function of its place modulo `PERIOD`, a prime: a block that comes to the wrong place shows,
and what is expected takes microseconds to work out for any size. Sums and products are whole numbers that the
dtype holds exactly in whatever order they are made: a result is right or wrong, and no tolerance blurs it.
"""

from __future__ import annotations

import torch

PERIOD = 1021
REDUCTIONS = ("sum", "prod", "min", "max", "avg")
_MANY = 2**15  # distinct values are enough
_DOUBLINGS = 6  # 2^6 fits in int8


def exact_limit(dtype: torch.dtype) -> int:
    """Return the number up to which `dtype` holds every whole number from 0."""
    if dtype.is_floating_point:
        # eps is the gap above 1; all whole numbers are held to 2 / eps, or to the largest number there is
        info = torch.finfo(dtype)
        return int(min(2 / info.eps, info.max))
    return int(torch.iinfo(dtype).max)


def sent(rank: int, ranks: int, reduction: str | None, dtype: torch.dtype) -> torch.Tensor:
    """Return one period of what `rank` of `ranks` sends, int64 of shape (PERIOD,).

    Args:
        rank: of the group.
        ranks: of the group.
        reduction: one of `REDUCTIONS`; None where values are only copied.
        dtype: of the test, whose range they stay in.
    """
    place = torch.arange(PERIOD)
    limit = exact_limit(dtype)
    if reduction is None or reduction in ("min", "max"):
        return (31 * place + 17 * rank) % (min(limit, _MANY) + 1)
    if reduction == "prod":
        return 1 + _is_among(rank, ranks, place, place % (min(ranks, _DOUBLINGS) + 1)).long()
    if reduction == "avg":
        return _average(limit, ranks, dtype) + _opposite(rank, ranks)
    among = min(ranks, limit)
    most = min(limit // among, _MANY)
    return _is_among(rank, ranks, place, among) * (1 + (7 * place + 3 * rank) % most)


def reduced(ranks: int, reduction: str, dtype: torch.dtype) -> torch.Tensor:
    """Return one period of the reduction of what all `ranks` send, int64 of shape (PERIOD,)."""
    values = torch.stack([sent(rank, ranks, reduction, dtype) for rank in range(ranks)])
    if reduction == "prod":
        return values.prod(0)
    if reduction == "avg":
        return values.sum(0) // ranks
    if reduction == "sum":
        return values.sum(0)
    return values.amin(0) if reduction == "min" else values.amax(0)


def fill(target: torch.Tensor, period: torch.Tensor, start: int = 0) -> None:
    """Write `period` again and again into flat `target`, whose first element stands at place `start`."""
    if not target.numel():
        return
    one = period.roll(-(start % PERIOD)).to(target.dtype).to(target.device)
    whole, rest = divmod(target.numel(), PERIOD)
    if whole:
        target[: whole * PERIOD].view(whole, PERIOD).copy_(one.expand(whole, PERIOD))
    if rest:
        target[whole * PERIOD :].copy_(one[:rest])


def slack(ranks: int, reduction: str | None, dtype: torch.dtype) -> float:
    """Return how far off a right result may lie: 0, but for an average over ranks that are not 2^k.

    NCCL multiplies by 1 / ranks before it adds: each of `ranks` terms and additions then rounds once.
    """
    if reduction != "avg" or not dtype.is_floating_point or ranks & (ranks - 1) == 0:
        return 0.0
    return (ranks + 2) * torch.finfo(dtype).eps * float(reduced(ranks, "avg", dtype).max() + 1)


def wrong(found: torch.Tensor, expected: torch.Tensor, slack: float = 0.0) -> int:
    """Return in how many elements two flat tensors of one dtype differ: in bits, or by more than `slack`."""
    if not found.numel():
        return 0
    if slack:
        return int(((found.float() - expected.float()).abs() <= slack).logical_not().sum())
    width = found.element_size()
    unequal = found.view(torch.uint8).view(-1, width) != expected.view(torch.uint8).view(-1, width)
    return int(unequal.any(1).sum())


def _is_among(rank: int, ranks: int, place: torch.Tensor, among: int | torch.Tensor) -> torch.Tensor:
    """Whether `rank` is one of the `among` ranks that count at each place; which they are changes with it."""
    return (place + rank) % ranks < among


def _average(limit: int, ranks: int, dtype: torch.dtype) -> torch.Tensor:
    """Averages whose sum over all ranks is exact; 0 where there are too many ranks for others."""
    if dtype.is_floating_point and ranks > limit // 3:
        return torch.zeros(PERIOD, dtype=torch.int64)
    return 1 + torch.arange(PERIOD) % max(1, min(limit // ranks - 2, _MANY))


def _opposite(rank: int, ranks: int) -> int:
    """+1 and -1 by turns, so that all ranks' sum is 0."""
    if ranks % 2 and rank == ranks - 1:
        return 0
    return 1 if rank % 2 == 0 else -1
