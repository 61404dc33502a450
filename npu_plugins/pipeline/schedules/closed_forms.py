"""Bubbles and activations in closed form, from the schedules' papers: what simulation and runs must meet."""

from __future__ import annotations

from fractions import Fraction

from npu_plugins.pipeline.schedules.simulate import Costs, Time


def bubble(name: str, ranks: int, micro_batches: int, chunks: int, costs: Costs) -> Time | None:
    """Return the idle time of each rank in one step, where a closed form is exact; else None.

    Stages are even and transfers take no time. Sources: GPipe, arXiv 1811.06965 §2.3; 1F1B and interleaved,
    Narayanan et al. 2021 (2104.04473) §2.2; ZB-H1 and ZB-V, 2401.10241. The form of DualPipeV is our own,
    found by simulation: that of its authors is an upper bound.
    """
    forward, input_gradient, weight_gradient, transfer = costs
    total = forward + input_gradient + weight_gradient
    if transfer:
        return None
    if name in ("gpipe", "1f1b"):
        return (ranks - 1) * total
    if name == "interleaved":
        return (ranks - 1) * total / chunks
    if name == "zb-h1" and micro_batches >= ranks and weight_gradient <= min(forward, input_gradient):
        return (ranks - 1) * (forward + input_gradient - weight_gradient)
    if name == "zb-v" and micro_batches >= 2 * ranks - 1 and forward == input_gradient == weight_gradient:
        return (ranks - 1) * forward / 2  # all of it before a rank's first or behind its last action
    if name == "dualpipe-v" and input_gradient <= forward <= input_gradient + weight_gradient:
        return (ranks - 1) * (forward + max(0, input_gradient - weight_gradient)) / 2
    if name == "eval" and (chunks == 1 or micro_batches % ranks == 0):
        return (ranks - 1) * forward / chunks
    return None


def activations(name: str, ranks: int, micro_batches: int, chunks: int, rank: int) -> Fraction:
    """Return the most activations that `rank` keeps at once, in those of a rank's whole share of the model.

    Exact for every number of micro-batches that the schedule takes; same sources as `bubble`.
    """
    if name == "gpipe":
        return Fraction(micro_batches)
    if name == "1f1b":
        return Fraction(min(micro_batches, ranks - rank))
    if name == "interleaved":
        return Fraction(
            min(micro_batches * chunks, 2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1), chunks
        )
    if name == "zb-h1":
        return Fraction(min(micro_batches, ranks))
    if name == "zb-v":  # the two arms; p once the pipeline is full
        return Fraction(min(micro_batches, 2 * ranks - rank - 1) + min(micro_batches, rank + 1), 2)
    if name == "dualpipe-v":
        return ranks + Fraction(1, 2)
    assert name == "eval", f"no closed form for {name}"
    return Fraction(1, chunks)
