"""A memory estimate as a table, as JSON and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ds_configs.memory.changes import Way
from ds_configs.memory.job import MemoryJob
from ds_configs.memory.result import MemoryEstimate

if TYPE_CHECKING:
    from rich.table import Table

GIB = 1 << 30
# What each term is, for those who see its name for the first time.
MEANING = {
    "parameters": "the model's weights on this rank",
    "persistent parameters": "ZeRO-3: small tensors that stay whole",
    "gathered parameters": "ZeRO-3: whole weights of layers in use or used again soon",
    "gradients": "of the weights on this rank",
    "master weights": "the optimizer's fp32 copy",
    "optimizer states": "Adam's two moments, or what the optimizer has",
    "reduce buckets": "what gradients are reduced through",
    "reduce temporaries": "copies made while gradients are reduced",
    "step temporaries": "copies made while the optimizer steps",
    "offload buffers": "what passes between NPU and host",
    "pipeline buffers": "activations and gradients on their way between stages",
    "activations": "kept for the backward pass, of all micro-batches in flight",
    "logits and loss": "the output layer, and the loss in fp32",
    "allocator slack": "reserved by the caching allocator but not in use",
    "HCCL buffers": "2 × HCCL_BUFFSIZE a communicator",
    "swap buffers": "what optimizer states pass through on their way to the disk",
}


def gib(size: int) -> str:
    """Return ``size`` bytes in GiB, as text."""
    return f"{size / GIB:.2f} GiB"


def dominant(estimate: MemoryEstimate) -> tuple[str, int]:
    """Return the largest term of the stage that needs most, and its bytes."""
    return max(estimate.terms.items(), key=lambda term: term[1])


def table(estimate: MemoryEstimate) -> Table:
    """Return a rich table: a row for each term, a column for each pipeline stage."""
    from rich.table import Table

    stages = estimate.stages
    grid = Table(title="Device memory of one rank, GiB")
    grid.add_column("term")
    for stage in stages:
        grid.add_column(f"stage {stage.stage}" if len(stages) > 1 else "GiB", justify="right")
    grid.add_column("what it is", style="dim")
    names = list(dict.fromkeys(name for stage in stages for name in stage.terms))
    for name in names:
        cells = [f"{stage.terms.get(name, 0) / GIB:.2f}" for stage in stages]
        grid.add_row(name, *cells, MEANING.get(name, ""))
    grid.add_section()
    grid.add_row("total", *(f"{stage.total / GIB:.2f}" for stage in stages), "", style="bold")
    grid.add_row("its peak is at", *(stage.moment for stage in stages), "")
    if estimate.host:
        host = [f"{stage.host / GIB:.2f}" for stage in stages]
        what = ", ".join(dict.fromkeys(name for stage in stages for name in stage.host_terms))
        grid.add_row("host memory", *host, what)
    return grid


def sentences(
    job: MemoryJob, estimate: MemoryEstimate, capacity: int | None, ways: Sequence[Way]
) -> list[str]:
    """Return what the numbers mean: what dominates, whether it fits, and the cheapest ways to make it fit."""
    name, size = dominant(estimate)
    lines = [*job.shape.notes, f"Most is {name}: {gib(size)} of {gib(estimate.total)}."]
    if capacity is None:
        return lines
    if estimate.fits(capacity):
        return [*lines, f"It fits {gib(capacity)}, with {gib(capacity - estimate.total)} to spare."]
    lines.append(f"It does not fit {gib(capacity)}: {gib(estimate.total - capacity)} too much.")
    for number, way in enumerate(ways):
        label = "Cheapest change that makes it fit" if number == 0 else "Or"
        what = " and ".join(change.what for change in way.settled)
        price = "; ".join(f"{change.what}: {change.price}" for change in way.settled)
        total = estimate_total(way)
        lines.append(f"{label}: {what} → {gib(total)}. Cost: {price}.")
    if not ways:
        lines.append("No change found makes it fit: use more NPUs, a smaller model or a shorter sequence.")
    return lines


def estimate_total(way: Way) -> int:
    """Return the device memory of a job after the changes of ``way``."""
    from ds_configs.memory.estimate import estimate

    return estimate(way.job).total


def as_json(
    job: MemoryJob, estimate: MemoryEstimate, capacity: int | None, ways: Sequence[Way]
) -> dict[str, Any]:
    """Return the report as an object for ``json.dumps``; sizes are bytes."""
    name, size = dominant(estimate)
    return {
        "model": {
            "name": job.shape.name,
            "parameters": job.shape.parameters(),
            "notes": list(job.shape.notes),
        },
        "total_bytes": estimate.total,
        "allocated_bytes": estimate.allocated,
        "host_bytes": estimate.host,
        "dominant": {"term": name, "bytes": size},
        "capacity_bytes": capacity,
        "fits": None if capacity is None else estimate.fits(capacity),
        "stages": [
            {
                "stage": stage.stage,
                "peak": stage.moment,
                "terms": dict(stage.terms),
                "host_terms": dict(stage.host_terms),
                "total_bytes": stage.total,
            }
            for stage in estimate.stages
        ],
        "ways_to_fit": [
            {
                "changes": [{"what": change.what, "price": change.price} for change in way.settled],
                "total_bytes": estimate_total(way),
            }
            for way in ways
        ],
    }
