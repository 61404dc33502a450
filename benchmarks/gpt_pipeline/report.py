"""The figures as a table in the terminal, the goals, and a plot."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from side_by_side.rounds import ratio

from gpt_pipeline.contenders import ENTRIES

SAME_SCHEDULE_GOAL = 1.01
"""Ours over the best peer that runs the same schedule, at most."""
BEST_GOAL = 1.08
"""DeepSpeed's 1F1B over our best, at least."""
COLOURS = {"floor": "0.75", "ours": "yellowgreen", "DeepSpeed": "sandybrown", "torch": "skyblue"}

Figures = dict[str, dict[str, Any]]


def print_table(figures: Figures) -> None:
    """All contenders in the order of their schedules."""
    rounds = len(next(iter(figures.values()))["ms"])
    print(f"\nA training step, 2 ranks over gloo, median of {rounds} rounds; memory: tensors but parameters")
    print(
        f"{'':28s} {'ms':>7s} {'quartiles':>11s} {'/ floor':>8s} {'/ DS 1F1B':>9s} {'MiB, ranks':>13s}  error"
    )
    for name, row in figures.items():
        low, median, high = statistics.quantiles(row["ms"], n=4)
        cells = [
            f"{ratio(row['ms'], figures[to]['ms']):.3f}" if to in figures else "–"
            for to in ("floor", "DeepSpeed 1F1B")
        ]
        memory = ", ".join(f"{count / 2**20:.1f}" for count in row.get("bytes", ())) or "–"
        print(
            f"{name:28s} {median:7.0f} {low:5.0f}–{high:<5.0f} {cells[0]:>8s} {cells[1]:>9s} {memory:>13s} "
            f" {row['error']:.0e}"
        )


def goals(figures: Figures) -> list[str]:
    """Each goal that these figures can tell about, and whether it is met, in one line."""
    told = []
    own = [name for name in figures if ENTRIES[name].maker == "ours"]
    peers = [name for name in figures if ENTRIES[name].maker in ("DeepSpeed", "torch")]
    for name in own:
        same = [peer for peer in peers if ENTRIES[peer].kind == ENTRIES[name].kind]
        if same:
            told += _same_schedule(figures, name, same)
    if own and peers:
        best = min(own, key=lambda name: statistics.median(figures[name]["ms"]))
        if "DeepSpeed 1F1B" in figures:
            gain = ratio(figures["DeepSpeed 1F1B"]["ms"], figures[best]["ms"])
            told.append(_told(gain >= BEST_GOAL, f"DeepSpeed 1F1B takes {gain:.3f} of {best}, {BEST_GOAL}"))
        worst, peer = max((ratio(figures[best]["ms"], figures[peer]["ms"]), peer) for peer in peers)
        told.append(_told(worst < 1, f"{best} takes {worst:.3f} of the fastest peer, {peer}; below 1"))
    return told


def _same_schedule(figures: Figures, name: str, peers: list[str]) -> list[str]:
    worst, peer = max((ratio(figures[name]["ms"], figures[peer]["ms"]), peer) for peer in peers)
    told = [_told(worst <= SAME_SCHEDULE_GOAL, f"{name} takes {worst:.3f} of {peer}, {SAME_SCHEDULE_GOAL}")]
    if "bytes" in figures[name]:
        own = max(figures[name]["bytes"])
        least, peer = min((max(figures[peer]["bytes"]), peer) for peer in peers)
        told.append(
            _told(
                own <= least,
                f"{name} keeps {own / 2**20:.1f} MiB on the fuller rank, {peer} {least / 2**20:.1f}; no more",
            )
        )
    return told


def _told(met: bool, what: str) -> str:
    return f"goal {'met' if met else 'NOT met'}: {what} wanted"


def plot(figures: Figures, path: Path) -> None:
    """A bar for each contender, quartiles as whiskers; the colour says whose it is."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, (name, row) in enumerate(figures.items()):
        low, median, high = statistics.quantiles(row["ms"], n=4)
        axes.bar(
            place,
            median,
            yerr=[[median - low], [high - median]],
            color=COLOURS[ENTRIES[name].maker],
            capsize=3,
        )
        axes.text(place, 0, f" {median:.0f}", ha="center", va="bottom", rotation=90)
    if "floor" in figures:
        level = statistics.median(figures["floor"]["ms"])
        axes.axhline(level, color="0.4", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(figures)), list(figures), rotation=40, ha="right")
    axes.set_ylabel("ms a training step, 2 ranks, gloo")
    axes.set_title("GPT, hidden 256, 8 blocks, sequence 128, micro-batch 4 × 8, fp32", fontsize=10)
    figure.savefig(path, dpi=150)
