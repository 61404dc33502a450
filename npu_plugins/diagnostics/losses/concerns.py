"""What is strange about the losses of one run. Pure."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

from npu_plugins.diagnostics.losses.read import Curve

WINDOW, LATEST, SPIKE = 20, 5, 6.0
"""Of the entries before it: a loss that lies above the median of the latest ones by so many times the usual
distance from one entry to the next is a spike."""
LEAST_SPIKE = 0.2
"""Relative to that median; smaller ones are no spikes."""
STILL = 10
"""Equal losses in a row that are too many."""


def concerns_of(curve: Curve) -> list[str]:
    """Return a sentence with its mend for each thing that is wrong; [] if nothing is."""
    found = [*_not_finite(curve), *_still(curve), *_spikes(curve)]
    values = [value for value in curve.values if math.isfinite(value)]
    tail = max(1, len(values) // 10)
    if len(values) >= WINDOW and median(values[-tail:]) > median(values[:tail]):
        found.append(
            f"the loss has risen from {median(values[:tail]):.4g} to {median(values[-tail:]):.4g}; lower the "
            "learning rate, warm up longer, clip gradients"
        )
    return found


def _not_finite(curve: Curve) -> list[str]:
    bad = [step for step, value in zip(curve.steps, curve.values, strict=True) if not math.isfinite(value)]
    if not bad:
        return []
    further = f", and at {len(bad) - 1} further entries" if len(bad) > 1 else ""
    return [
        f"the loss is not finite at step {bad[0]}{further}; train with --find_nonfinite, which names the "
        "module"
    ]


def _still(curve: Curve) -> list[str]:
    begin = 0
    for place in range(1, len(curve.values) + 1):
        if place < len(curve.values) and curve.values[place] == curve.values[begin]:
            continue
        if place - begin >= STILL:
            zero = (
                "the Trainer logs 0 for a loss that is not finite (logging_nan_inf_filter): train with "
                "--find_nonfinite"
                if not curve.values[begin]
                else "nothing is trained: look at the learning rate, frozen parameters, skipped steps of fp16"
            )
            return [
                f"the loss is {curve.values[begin]:.6g} at {place - begin} entries in a row from step "
                f"{curve.steps[begin]}; {zero}"
            ]
        begin = place
    return []


def _spikes(curve: Curve) -> list[str]:
    found = []
    for place in range(WINDOW, len(curve.values)):
        before, value = curve.values[place - WINDOW : place], curve.values[place]
        middle = median(before[-LATEST:])
        usual = median(abs(after - each) for each, after in pairwise(before))
        if value - middle > max(SPIKE * usual, LEAST_SPIKE * abs(middle)):
            found.append(curve.steps[place])
    if not found:
        return []
    shown = ", ".join(map(str, found[:5])) + (" …" if len(found) > 5 else "")
    return [
        f"the loss leaps up at step{'s' * (len(found) > 1)} {shown}; look at these batches, and at the "
        "gradient norm"
    ]
