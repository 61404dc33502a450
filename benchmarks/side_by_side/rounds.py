"""Turns: in every round all run once, each round starts with another one, ratios are taken inside a round."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist


def alternate(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int,
    group: dist.ProcessGroup,
    *,
    steps: int = 1,
    seconds: float = math.inf,
    synchronize: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Return the seconds of a step by contender and round, of the rank that took longest.

    Args:
        contenders: what one step does, by name; the same names in the same order on every rank.
        rounds: how many count.
        warm_up: how many go before those.
        group: of the ranks, for the barrier before each turn.
        steps: done in one turn.
        seconds: no further round is begun after so many, by the first rank's clock.
        synchronize: waits for the device.
    """
    names = list(contenders)
    taken: dict[str, list[float]] = {name: [] for name in names}
    began = time.perf_counter()
    gc.collect()
    gc.disable()
    for round_ in range(rounds + warm_up):
        if not _go_on(time.perf_counter() - began < seconds, group):
            break
        first = round_ % len(names)
        for name in names[first:] + names[:first]:
            synchronize()
            dist.barrier(group=group)
            synchronize()
            start = time.perf_counter()
            for _ in range(steps):
                contenders[name]()
            synchronize()
            taken[name].append((time.perf_counter() - start) / steps)
        gc.collect()
    gc.enable()
    every_rank: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every_rank, taken, group=group)
    return {
        name: [max(values) for values in zip(*(of[name] for of in every_rank), strict=True)][warm_up:]
        for name in names
    }


def _go_on(wanted: bool, group: dist.ProcessGroup) -> bool:
    """What the first rank wants, on every rank."""
    word = [wanted]
    dist.broadcast_object_list(word, group_src=0, group=group)
    return word[0]


def ratio(one: list[float], other: list[float]) -> float:
    """Median over the rounds of one contender's time over another's in the same round."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))
