"""`npu-plugins pipeline show` and `compare`: schedules on paper, without torch or a device."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from npu_plugins.pipeline.errors import PipelineError, ScheduleError
from npu_plugins.pipeline.schedules.chrome_trace import chrome_trace
from npu_plugins.pipeline.schedules.communication import add_communication
from npu_plugins.pipeline.schedules.registry import TRAINING_SCHEDULES, build_schedule
from npu_plugins.pipeline.schedules.schedule import require_counts
from npu_plugins.pipeline.schedules.simulate import Costs, Time, simulate
from npu_plugins.pipeline.schedules.svg import svg_timeline
from npu_plugins.pipeline.schedules.timeline import text_timeline
from npu_plugins.pipeline.schedules.validate import count_transfers, peak_activations, validate


def show(options: argparse.Namespace) -> int:
    """Draw one schedule, and say what it costs."""
    schedule = build_schedule(options.schedule, options.ranks, options.micro_batches, options.virtual_stages)
    simulation = simulate(schedule, _costs(options))
    spans, placement = simulation.spans(), schedule.placement
    stages = f" with {placement.chunks} stages each" if placement.chunks > 1 else ""
    title = f"{schedule.name}, {placement.ranks} ranks{stages}, {schedule.micro_batches} micro-batches"
    print(f"{title}; time ->")
    print(text_timeline(spans, placement))
    share = f"{float(simulation.bubble / simulation.time):.1%}" if simulation.time else "0.0%"
    print(
        f"time {_number(simulation.time)}, of which each rank idles {_number(simulation.bubble)} ({share})",
        end="",
    )
    print(f"; {_number(simulation.bubble_inside)} between a rank's first and last action")
    print(f"activations kept at most, by rank: {' '.join(map(_number, peak_activations(schedule)))}")
    print(f"sends and receives, by rank: {' '.join(map(str, count_transfers(schedule)))}")
    if options.actions:
        complete = add_communication(schedule)
        validate(complete)
        print(complete)
    _write(options.svg, lambda: svg_timeline(spans, placement, title))
    _write(options.trace, lambda: chrome_trace(spans, seconds=1e-3))
    return 0


def compare(options: argparse.Namespace) -> int:
    """Put all schedules side by side; those that need other numbers are named below them."""
    costs = _costs(options)
    require_counts("comparison", ranks=options.ranks, micro_batches=options.micro_batches)
    print(f"{options.ranks} ranks, {options.micro_batches} micro-batches")
    print(_ROW.format("schedule", "stages", "time", "bubble", "share", "inside", "activations", "messages"))
    refusals = []
    for name in TRAINING_SCHEDULES:
        chunks = options.virtual_stages if name == "interleaved" else None
        try:
            schedule = build_schedule(name, options.ranks, options.micro_batches, chunks)
        except ScheduleError as error:
            refusals.append(str(error))
            continue
        simulation = simulate(schedule, costs)
        share = f"{float(simulation.bubble / simulation.time):.1%}" if simulation.time else "0.0%"
        numbers = (
            simulation.time,
            simulation.bubble,
            simulation.bubble_inside,
            max(peak_activations(schedule)),
        )
        time, bubble, inside, peak = map(_number, numbers)
        print(
            _ROW.format(
                name,
                schedule.placement.chunks,
                time,
                bubble,
                share,
                inside,
                peak,
                max(count_transfers(schedule)),
            )
        )
    if refusals:
        print("left out:")
    for refusal in refusals:
        print(f"  {refusal}")
    return 0


_ROW = "{:<12} {:>6} {:>8} {:>8} {:>7} {:>7} {:>12} {:>9}"


def _costs(options: argparse.Namespace) -> Costs:
    return Costs(*(_duration(name, getattr(options, name)) for name in Costs._fields))


def _duration(name: str, text: str) -> float:
    """Read a time such as 1, 0.5 or 2/3."""
    try:
        value = float(Fraction(text))
    except (ValueError, ZeroDivisionError, OverflowError):
        value = -1.0
    if value < 0:
        raise PipelineError(
            f"--{name.replace('_', '-')} {text} is no time: give a number such as 1, 0.5 or 2/3"
        )
    return value


def _number(value: Time) -> str:
    return f"{round(float(value), 9) + 0.0:.4g}"  # sums of thirds end a little off; + 0.0 turns -0 into 0


def _write(path: Path | None, text: Callable[[], str]) -> None:
    if path is None:
        return
    try:
        path.write_text(text(), encoding="utf-8")
    except OSError as error:
        raise PipelineError(
            f"cannot write {path}: {error.strerror}; give a file in a folder that exists"
        ) from error
    print(f"written: {path}")
