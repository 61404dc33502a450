"""The picture of two runs' losses and their difference."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from npu_plugins.diagnostics.losses.compare import Comparison


def plot_comparison(found: Comparison, path: Path, names: tuple[str, str]) -> Path:
    """Draw both curves, and their relative difference with the tolerance below, into the PNG file `path`."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    steps = [row.step for row in found.rows]
    above.plot(steps, [row.first for row in found.rows], label=names[0])
    above.plot(steps, [row.second for row in found.rows], "--", label=names[1])
    above.set_ylabel("loss")
    above.legend()
    differences = [abs(row.difference) if math.isfinite(row.difference) else math.nan for row in found.rows]
    below.plot(steps, differences, ".-", color="tab:gray", label="difference")
    below.axhline(found.tolerance, color="tab:red", linestyle=":", label=f"tolerance {found.tolerance:.3g}")
    if any(each > 0 for each in differences):
        below.set_yscale("log")
    if found.divergence is not None:
        for axes in (above, below):
            axes.axvline(found.divergence.step, color="tab:red", linewidth=0.8)
        below.set_title(f"part at step {found.divergence.step}", fontsize="medium", color="tab:red")
    below.set_xlabel("step")
    below.set_ylabel("relative difference")
    below.legend(loc="lower right")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    # without an ending, matplotlib would add one: another file than the one asked for
    figure.savefig(path, dpi=120, format=None if path.suffix else "png")
    return path
