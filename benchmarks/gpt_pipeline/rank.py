"""What one rank does: build the contenders, hold each to one process, count memory, time them in turn."""

from __future__ import annotations

import contextlib
import io
import logging
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from side_by_side.rounds import alternate

from gpt_pipeline.case import RANKS, in_one_process
from gpt_pipeline.contender import Contender
from gpt_pipeline.contenders import ENTRIES
from gpt_pipeline.memory import most_alive

LARGEST_ERROR = 1e-5


def run(
    rank: int, store: Path, names: list[str], rounds: int, seconds: float, memory: bool
) -> dict[str, Any]:
    """Measure the named contenders; every rank returns the same figures.

    No round is begun after `seconds`.

    Returns, by contender: its error against one process, milliseconds of a step in each round (of the slowest
    rank), and, if `memory`, each rank's peak bytes of tensors beyond its parameters.
    """
    began = time.perf_counter()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    with contextlib.redirect_stdout(io.StringIO()):
        import deepspeed

        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        deepspeed.init_distributed("gloo", verbose=False)  # finds the group above
    group = dist.new_group(list(range(RANKS)))
    try:
        contenders, figures = _build(names, group, memory)
        steps = {name: contender.step for name, contender in contenders.items()}
        # Every contender has done its first step, in which layouts are settled, and is warm.
        left = seconds - (time.perf_counter() - began)
        for name, turns in alternate(steps, rounds, 0, group, seconds=left).items():
            figures[name]["ms"] = [value * 1e3 for value in turns]
        return figures
    finally:
        dist.destroy_process_group()


def _build(
    names: list[str], group: dist.ProcessGroup, memory: bool
) -> tuple[dict[str, Contender], dict[str, dict[str, Any]]]:
    expected = in_one_process()
    contenders: dict[str, Contender] = {}
    figures: dict[str, dict[str, Any]] = {}
    for name in names:
        figures[name] = figure = {}

        def step(contender: Contender, figure: dict[str, Any] = figure, name: str = name) -> None:
            if "error" not in figure:  # the first step
                figure["error"] = 0.0 if name == "floor" else contender.check(expected)
            else:
                contender.step()

        entry, bytes_ = ENTRIES[name], None
        with contextlib.redirect_stdout(io.StringIO()):
            if memory:
                contender, bytes_ = most_alive(lambda entry=entry: entry.build(group), step)
            else:
                contender = entry.build(group)
                step(contender)
        contenders[name] = contender
        held = sum(parameter.nbytes for _, parameter in contender.parameters)
        _gather(figure, group, None if bytes_ is None else bytes_ - held)
        if not figure["error"] <= LARGEST_ERROR:
            raise SystemExit(
                f"{name} is off by {figure['error']:.1e} of one process, more than {LARGEST_ERROR:.0e}: a "
                "time of it would mean nothing."
            )
    return contenders, figures


def _gather(figure: dict[str, Any], group: dist.ProcessGroup, bytes_: int | None) -> None:
    """Put in the worst error and every rank's memory."""
    everyone: list[Any] = [None] * RANKS
    dist.all_gather_object(everyone, (figure["error"], bytes_), group=group)
    figure["error"] = max(error for error, _ in everyone)
    if bytes_ is not None:
        figure["bytes"] = [each for _, each in everyone]
