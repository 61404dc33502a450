"""What would make a job fit that does not: more cards, or a shorter sequence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ds_configs.errors import DsConfigError
from ds_configs.plan.report import amount
from ds_configs.plan.request import PlanRequest
from ds_configs.plan.search import Plan, plan

GIB = 2**30
MOST_TIMES_MORE = 64
SHORTEST = 128
"""Tokens below which nobody trains."""


def nearest_miss(failed: Plan) -> str:
    """Return a sentence for a plan in which nothing fits: what came nearest, and what would mend it.

    The batch grows with the cards where it must, as otherwise no replica would have any of it.
    """
    request = failed.request
    miss = min(failed.misses, key=lambda each: each.excess)
    term, size = miss.term
    return (
        f"nearest: {miss.candidate.family}, {amount(miss.excess)} too much because of {term} "
        f"({amount(size)}); {_mend(request, miss.memory.total)}"
    )


def _mend(request: PlanRequest, needed: int) -> str:
    for times in (2, 4, 8, 16, 32, MOST_TIMES_MORE):
        npus = request.npus * times
        family = _fitting(request, npus=npus, global_batch=max(request.global_batch, npus))
        if family:
            return f"with {npus} NPUs {family} fits"
    shorter = request.seq // 2
    while shorter >= SHORTEST:
        family = _fitting(request, seq=shorter)
        if family:
            return f"with sequences of {shorter} tokens {family} fits"
        shorter //= 2
    room = math.ceil(needed / (1 - request.margin) / GIB) * GIB
    larger_cards = request.hardware.with_figures(hbm_bytes=float(max(room, request.hardware.hbm_bytes)))
    family = _fitting(request, hardware=larger_cards)
    if family:
        return f"with {room // GIB} GiB a card {family} fits"
    host = request.hardware.host_bytes / GIB
    return f"use cards with {room // GIB} GiB and more than {host:.0f} GiB of host memory a card"


def _fitting(request: PlanRequest, **changes: Any) -> str | None:
    """Return the family that is proposed with ``changes``; None where nothing fits or nothing divides."""
    try:
        winner = plan(replace(request, **changes)).winner
    except DsConfigError:
        return None
    return winner.family if winner else None
