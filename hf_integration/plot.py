"""The loss plot of a run, drawn from the Trainer's log entries without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hf_integration.errors import TrainingInputError


def series(history: Sequence[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Return the steps and values of all log entries in ``history`` that have ``key``."""
    entries = [entry for entry in history if key in entry]
    return [entry["step"] for entry in entries], [entry[key] for entry in entries]


class LossUnit(NamedTuple):
    """What losses are measured in: the key of their log entries (evaluation's after ``eval_``), in words."""

    key: str
    name: str


def loss_unit(history: Sequence[dict[str, Any]]) -> LossUnit:
    """Return the unit of the losses in ``history``: nats per byte, where it has them, or per token."""
    if any(key in entry for entry in history for key in ("nats_per_byte", "eval_nats_per_byte")):
        return LossUnit("nats_per_byte", "nats per byte")
    return LossUnit("loss", "nats per token")


def plot_losses(history: Sequence[dict[str, Any]], path: Path, title: str) -> Path:
    """Draw training and evaluation loss over steps into the PNG file ``path`` and return it.

    Raises:
        TrainingInputError: ``history`` holds no loss.
    """
    # Not above: most ranks draw nothing, and would start half a second later.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    unit = loss_unit(history)
    curves = {
        "training": (series(history, unit.key), "-"),
        "evaluation": (series(history, f"eval_{unit.key}"), "o"),
    }
    if not any(steps for (steps, _), _ in curves.values()):
        raise TrainingInputError("there is no loss to plot: the run logged none; lower --logging_steps")
    # The object interface keeps the choice of backend away from pyplot's process-wide state.
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="step", ylabel=f"loss ({unit.name})", title=title)
    for label, ((steps, values), style) in curves.items():
        if steps:
            axes.plot(steps, values, style, label=label)
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
