"""What one rank does: build the contenders, hold each to the unsharded result, then time them in turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from side_by_side.rounds import alternate

from mlp_pair.case import SHAPES, Shape, draw, largest_error, unsharded
from mlp_pair.contenders import CONTENDERS, OPTIONAL, Contender

BACKENDS = {"npu": "hccl", "cpu": "gloo"}
LARGEST_ERROR = 1e-5
WARM_UP_ROUNDS = 3


def run(device_type: str, rank: int, size: int, store: Path, rounds: dict[str, int]) -> dict[str, Any] | None:
    """Measure every shape in ``rounds`` on one kind of device; figures on rank 0, None on the others.

    Returns, by shape and contender, the milliseconds of one step in each round (of the rank that took
    longest) and the largest error against the unsharded result.
    """
    torch.set_num_threads(1)
    device, bound = torch.device("cpu"), None
    if device_type != "cpu":
        device = bound = torch.device(device_type, rank)
        torch.accelerator.set_device_index(rank)
    dist.init_process_group(
        BACKENDS[device_type],
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        device_id=bound,
    )
    group = dist.new_group(list(range(size)))
    try:
        return {name: _measure_shape(SHAPES[name], device, group, rounds[name]) for name in rounds}
    finally:
        dist.destroy_process_group()


def _measure_shape(
    shape: Shape, device: torch.device, group: dist.ProcessGroup, rounds: int
) -> dict[str, Any]:
    contenders, figures = _build(shape, device, group)
    turns = alternate(
        {name: contender.step for name, contender in contenders.items()},
        rounds,
        WARM_UP_ROUNDS,
        group,
        steps=shape.steps,
        synchronize=_synchronizer(device),
    )
    for name, seconds in turns.items():
        figures[name]["ms"] = [value * 1e3 for value in seconds]
    return figures


def _build(
    shape: Shape, device: torch.device, group: dist.ProcessGroup
) -> tuple[dict[str, Contender], dict[str, dict[str, Any]]]:
    """The contenders that are installed, each right to rounding, and what is told of every one."""
    tensors = draw(shape, device)
    expected = unsharded(tensors, dist.get_rank(group), dist.get_world_size(group))
    contenders: dict[str, Contender] = {}
    figures: dict[str, dict[str, Any]] = {}
    for name, build in CONTENDERS.items():
        try:
            contender = build(tensors, group)
        except ModuleNotFoundError as error:
            if name not in OPTIONAL:
                raise
            figures[name] = {"missing": str(error)}
            continue
        contender.step()  # the second step is checked: what the first one leaves behind must not get into it
        error = largest_error(contender.step(), expected)
        if not error <= LARGEST_ERROR:
            raise SystemExit(
                f"{name} at {shape} on {device} is off by {error:.1e} of the unsharded result, more than"
                f" {LARGEST_ERROR:.0e}: a time of it would mean nothing."
            )
        contenders[name] = contender
        figures[name] = {"error": error}
    return contenders, figures


def _synchronizer(device: torch.device) -> Callable[[], None]:
    return (lambda: None) if device.type == "cpu" else torch.accelerator.synchronize
