"""The figures as a table in the terminal and as a plot."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from side_by_side.rounds import ratio

from mlp_pair.case import LARGE, SHAPES, SMALL

FLOOR_GOAL = 1.03
"""At the large shape: ours over the floor, at most."""

PEERS = ("by hand", "megatron-core", "DTensor")
DEVICES = {"npu": "simulated NPUs, HCCL", "cpu": "CPU, gloo"}


def summary(figures: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By contender: median and quartiles in milliseconds, ratio to the floor, ours over it."""
    table = {}
    for name, row in figures.items():
        if "missing" in row:
            continue
        low, median, high = statistics.quantiles(row["ms"], n=4)
        table[name] = {
            "median_ms": median,
            "lower_quartile_ms": low,
            "upper_quartile_ms": high,
            "over_floor": ratio(row["ms"], figures["floor"]["ms"]),
            "ours_over_it": ratio(figures["ours"]["ms"], row["ms"]),
            "error": row["error"],
        }
    return table


def print_tables(figures: dict[str, Any]) -> None:
    """One table for each kind of device and shape, and what each says about the goals."""
    for device, shapes in figures.items():
        for shape, rows in shapes.items():
            _print_table(f"{SHAPES[shape]} on {DEVICES[device]}", rows)
            print(verdict(shape, rows))


def _print_table(title: str, rows: dict[str, Any]) -> None:
    rounds = len(rows["floor"]["ms"])
    print(f"\n{title}: forward and backward, 2 ranks, median of {rounds} rounds")
    print(f"{'':14s} {'ms':>8s} {'quartiles':>17s} {'/ floor':>8s} {'ours / it':>10s} {'error':>8s}")
    table = summary(rows)
    for name, row in rows.items():
        if "missing" in row:
            print(f"{name:14s} not measured: {row['missing']}")
            continue
        told = table[name]
        quartiles = f"{told['lower_quartile_ms']:.2f}–{told['upper_quartile_ms']:.2f}"
        print(
            f"{name:14s} {told['median_ms']:8.2f} {quartiles:>17s} {told['over_floor']:8.3f}"
            f" {told['ours_over_it']:10.3f} {told['error']:8.0e}"
        )


def verdict(shape: str, rows: dict[str, Any]) -> str:
    """The goal of this shape and whether it is met, in one line."""
    if shape == LARGE.name:
        reached = ratio(rows["ours"]["ms"], rows["floor"]["ms"])
        met = "met" if reached <= FLOOR_GOAL else "NOT met"
        return f"goal {met}: ours is {reached:.3f} of the floor, at most {FLOOR_GOAL} wanted"
    if shape != SMALL.name:
        return f"no goal is set for {SHAPES[shape]}"
    ratios = {
        peer: ratio(rows["ours"]["ms"], rows[peer]["ms"]) for peer in PEERS if "missing" not in rows[peer]
    }
    peer, worst = max(ratios.items(), key=lambda item: item[1])
    met = "met" if worst <= 1 else "NOT met"
    return f"goal {met}: ours takes {worst:.3f} of the fastest peer's time ({peer}), at most 1 wanted"


def plot(figures: dict[str, Any], path: Path) -> None:
    """A panel for each kind of device and shape: a bar for each contender, quartiles as whiskers."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [(device, shape) for device in figures for shape in figures[device]]
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (device, shape) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        table = summary(figures[device][shape])
        medians = [row["median_ms"] for row in table.values()]
        whiskers = [
            [row["median_ms"] - row["lower_quartile_ms"] for row in table.values()],
            [row["upper_quartile_ms"] - row["median_ms"] for row in table.values()],
        ]
        colours = [{"floor": "0.75", "ours": "yellowgreen"}.get(name, "skyblue") for name in table]
        axes.bar(list(table), medians, yerr=whiskers, color=colours, capsize=3)
        for place, row in enumerate(table.values()):
            axes.text(place, 0, f"{row['over_floor']:.3f}", ha="center", va="bottom")
        axes.axhline(table["floor"]["median_ms"], color="0.4", linewidth=0.8, linestyle="--")
        axes.set_title(f"{SHAPES[shape]}\n{DEVICES[device]}", fontsize=10)
        axes.set_ylabel("ms a step, 2 ranks")
        axes.tick_params(axis="x", labelrotation=30)
    figure.suptitle(
        "Column and row parallel pair, forward and backward; in the bars: ratio to the floor", fontsize=10
    )
    figure.savefig(path, dpi=150)
