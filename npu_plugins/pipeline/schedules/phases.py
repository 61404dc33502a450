"""A rank's order written as its papers draw it: a pattern of actions so many times, then the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import count

from npu_plugins.pipeline.schedules.actions import Action, Kind


def expand(phases: Iterable[tuple[int, str]], stages: tuple[int, ...]) -> list[Action]:
    """Return the actions that `phases` describe, each taking the next micro-batch of its kind and chunk.

    Args:
        phases: how often, and the pattern, as in ``(3, "F0 B1")``: three times a forward at chunk 0 and a
            whole backward at chunk 1. ``I`` and ``B`` of one chunk count together. A ``W`` without chunk
            takes the oldest ``I`` whose weight gradient is still to do.
        stages: the stage of each chunk.
    """
    forwards = [count() for _ in stages]
    backwards = [count() for _ in stages]
    split: deque[tuple[int, int]] = deque()
    order: list[Action] = []
    for times, pattern in phases:
        words = [(Kind(word[0]), int(word[1:] or -1)) for word in pattern.split()]
        for kind, chunk in words * times:
            if kind is Kind.WEIGHT_GRADIENT:
                stage, micro_batch = split.popleft()
            else:
                stage = stages[chunk]
                micro_batch = next((forwards if kind is Kind.FORWARD else backwards)[chunk])
                if kind is Kind.INPUT_GRADIENT:
                    split.append((stage, micro_batch))
            order.append(Action(kind, stage, micro_batch))
    return order
