"""What would make a job fit that does not: more cards, or a shorter sequence."""

from __future__ import annotations

import math
from dataclasses import replace

from ds_configs.errors import DsConfigError
from ds_configs.plan.report import amount
from ds_configs.plan.request import PlanRequest
from ds_configs.plan.search import Plan, plan

GIB = 2**30
MOST_TIMES_MORE = 64


def nearest_miss(failed: Plan) -> str:
    """Return a sentence for a plan in which nothing fits: what came nearest, and what would mend it.

    The batch grows with the cards where it must, as otherwise no replica would have any of it.
    """
    request = failed.request
    if not failed.misses:
        return (
            f"no strategy divides {request.npus} NPUs, {request.shape.name} and a global batch of "
            f"{request.global_batch}; use a batch that is a multiple of {request.npus}"
        )
    miss = min(failed.misses, key=lambda each: each.excess)
    term, size = miss.term
    return (
        f"nearest: {miss.candidate.family}, {amount(miss.excess)} too much because of {term} "
        f"({amount(size)}); {_mend(request, miss.memory.total)}"
    )


def _mend(request: PlanRequest, needed: int) -> str:
    for times in (2, 4, 8, 16, 32, MOST_TIMES_MORE):
        npus = request.npus * times
        try:
            larger = replace(request, npus=npus, global_batch=max(request.global_batch, npus))
        except DsConfigError:
            continue
        found = plan(larger)
        if found.winner:
            return f"with {npus} NPUs {found.winner.family} fits"
    shorter = request.seq // 2
    while shorter >= 128:
        found = plan(replace(request, seq=shorter))
        if found.winner:
            return f"with sequences of {shorter} tokens {found.winner.family} fits"
        shorter //= 2
    room = math.ceil(needed / (1 - request.margin) / GIB) * GIB
    larger_cards = request.hardware.with_figures(hbm_bytes=float(max(room, request.hardware.hbm_bytes)))
    found = plan(replace(request, hardware=larger_cards))
    if found.winner:
        return f"with {room // GIB} GiB a card {found.winner.family} fits"
    host = request.hardware.host_bytes / GIB
    return f"use cards with {room // GIB} GiB and more than {host:.0f} GiB of host memory a card"
