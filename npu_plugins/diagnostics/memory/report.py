"""What is told of the memory of all ranks, in the documents' words first."""

from __future__ import annotations

from collections.abc import Sequence

from npu_plugins.diagnostics.memory.balance import OTHERS, SHARE, by_others, gib, imbalances
from npu_plugins.diagnostics.memory.rank import RankMemory

LISTED = 4
"""Ranks of which it is said why they take more."""
MANY = 16
"""Ranks of which each has a line; of more, those at both ends."""


def memory_report(ranks: Sequence[RankMemory], *, step: int | None = None, simulated: bool = False) -> str:
    """Return the report: a line for each rank, and who takes more and why.

    Args:
        ranks: of the job.
        step: after which it was measured.
        simulated: whether the devices are simulated NPUs.
    """
    ordered = sorted(ranks, key=lambda each: each.rank)
    at = "" if step is None else f" after step {step}"
    kind = " (simulated NPUs)" if simulated else ""
    lines = [f"memory of {len(ranks)} rank{'s' * (len(ranks) != 1)}{at}{kind}"]
    shown = ordered
    if len(ordered) > MANY:
        by_size = sorted(ordered, key=lambda each: -each.peak_reserved)
        chosen = {each.rank for each in (*by_size[: MANY // 2], *by_size[-MANY // 2 :])}
        shown = [each for each in ordered if each.rank in chosen]
    on_host = all(each.device == "cpu" for each in ranks)
    others = {} if on_host else by_others(ordered)
    lines += [_line(each, others.get(each.rank)) for each in shown]
    if len(shown) < len(ordered):
        lines.append(f"… and {len(ordered) - len(shown)} ranks between these in size")
    if len(ranks) > 1:
        found = imbalances(ordered)
        lines += [f"imbalance: {each}" for each in found[:LISTED]]
        if len(found) > LISTED:
            lines.append(f"imbalance: so do {len(found) - LISTED} further ranks, by less")
        if not found:
            lines.append(f"balanced: the ranks differ by less than {SHARE:.0%} of the largest, or by little")
    return "\n".join(lines)


def _line(each: RankMemory, others: int | None) -> str:
    where = ", ".join(part for part in (each.device, each.place, each.holds) if part)
    parts = {name: size for name, size in each.parts().items() if size}
    if others:
        parts[OTHERS] = others
    told = ", ".join(f"{name} {gib(size)}" for name, size in parts.items())
    if each.device == "cpu":  # all ranks of a host share its memory
        return f"Rank {each.rank}: {gib(each.reserved)} used, peak {gib(each.peak)} ({where}): {told}"
    return (
        f"Rank {each.rank}: {gib(each.used)} used of {gib(each.total)}, peak {gib(each.peak)}, "
        f"reserved {gib(each.peak_reserved)} ({where}): {told}"
    )
