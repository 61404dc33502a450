"""A memory estimate as stacked bars."""

from __future__ import annotations

import os
from dataclasses import replace

from ds_configs.errors import DsConfigError
from ds_configs.memory.estimate import estimate
from ds_configs.memory.job import MemoryJob

GIB = 1 << 30


def draw(job: MemoryJob, path: str | os.PathLike[str], capacity: int | None = None) -> None:
    """Write a PNG to ``path``: a bar for each pipeline stage or, without a pipeline, each ZeRO stage.

    Raises:
        DsConfigError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bars = _bars(job)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    names = list(dict.fromkeys(name for terms in bars.values() for name in terms))
    bottoms = [0.0] * len(bars)
    for index, name in enumerate(names):
        sizes = [terms.get(name, 0) / GIB for terms in bars.values()]
        axes.bar(list(bars), sizes, bottom=bottoms, label=name, color=f"C{index % 10}", edgecolor="white")
        bottoms = [low + size for low, size in zip(bottoms, sizes, strict=True)]
    if capacity is not None:
        axes.axhline(capacity / GIB, color="black", linestyle="--", label="capacity")
    axes.set_ylabel("GiB on one NPU at its peak")
    axes.set_title(f"{job.shape.name}: {job.shape.parameters() / 1e9:.2f} B parameters")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True)
    try:
        FigureCanvasAgg(figure).print_png(os.fspath(path))
    except OSError as error:
        raise DsConfigError(f"the plot cannot be written to {os.fspath(path)}: {error.strerror}") from None


def _bars(job: MemoryJob) -> dict[str, dict[str, int]]:
    result = estimate(job)
    if len(result.stages) > 1:
        return {f"stage {stage.stage}": dict(stage.terms) for stage in result.stages}
    bars = {}
    for stage in range(4):
        try:
            other = replace(job, stage=stage)
        except DsConfigError:
            continue
        label = f"ZeRO {stage}" + (" (this job)" if stage == job.stage else "")
        bars[label] = dict(estimate(other).terms)
    return bars
