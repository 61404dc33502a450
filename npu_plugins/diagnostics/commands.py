"""What `npu-plugins check` and `compare-loss` do."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from dataclasses import asdict
from typing import Any

from npu_plugins.diagnostics.errors import DiagnosticsError

ROWS = 12
"""Lines of a table of losses."""


def check_command(options: argparse.Namespace) -> int:
    """Look at one kind of thing in a run; return 1 if something is wrong."""
    if options.kind == "memory":
        return _memory(options)
    if options.kind == "loss":
        return _loss(options)
    if getattr(options, "other", None) is not None:
        return _checkpoints(options)
    return _records(options)


def _records(options: argparse.Namespace) -> int:
    from npu_plugins.diagnostics.consistency.difference import Outcome
    from npu_plugins.diagnostics.records import read_records

    records = read_records(options.path, options.kind, "--check_gradients")
    try:
        outcomes = [Outcome.from_plain(each) for each in records]
    except (KeyError, TypeError, ValueError) as error:
        raise DiagnosticsError(
            f"{options.path} has records that are none of these checks ({type(error).__name__}: {error}); "
            "delete its folder checks and train again"
        ) from error
    bad = [each for each in outcomes if each.differences]
    if options.json:
        print(json.dumps(records, indent=1))
    elif bad:
        print(bad[0])
    else:
        steps = ", ".join(str(each.step) for each in outcomes[:8]) + (" …" if len(outcomes) > 8 else "")
        print(
            f"{options.kind}: {outcomes[-1].tensors} tensors alike, bit by bit, on all ranks that share "
            f"them, at {len(outcomes)} checks (steps {steps})"
        )
    return int(bool(bad))


def _checkpoints(options: argparse.Namespace) -> int:
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed logs to standard output when it is imported
        from npu_plugins.diagnostics.consistency.checkpoints import compare_checkpoints

        found = compare_checkpoints(options.path, options.other)
    print(json.dumps({**asdict(found), "same": found.same}, indent=1) if options.json else found)
    return int(not found.same)


def _memory(options: argparse.Namespace) -> int:
    from npu_plugins.diagnostics.memory import RankMemory, imbalances, memory_report
    from npu_plugins.diagnostics.records import read_records

    records = read_records(options.path, "memory", "--check_memory")
    wanted = records[-1]["step"] if options.step is None else options.step
    record = next((each for each in records if each["step"] == wanted), None)
    if record is None:
        steps = ", ".join(str(each["step"]) for each in records)
        raise DiagnosticsError(f"step {wanted} was not measured; give one of {steps}")
    ranks = [RankMemory.from_plain(each) for each in record["ranks"]]
    if options.json:
        print(json.dumps({**record, "imbalances": [asdict(each) for each in imbalances(ranks)]}, indent=1))
    else:
        print(memory_report(ranks, step=record["step"], simulated=record["simulated"]))
    return int(bool(imbalances(ranks)))


def _loss(options: argparse.Namespace) -> int:
    from npu_plugins.diagnostics.losses import concerns_of, read_curve

    if options.plot is not None or options.tolerance is not None:
        raise DiagnosticsError("--plot and --tolerance compare two runs; give --reference RUN")
    curve = read_curve(options.path, options.key)
    concerns = concerns_of(curve)
    if options.json:
        print(json.dumps({**asdict(curve), "concerns": concerns}, indent=1))
    else:
        print(
            f"{curve.source}: {len(curve.steps)} losses, {curve.values[0]:.6g} (step {curve.steps[0]}) -> "
            f"{curve.values[-1]:.6g} (step {curve.steps[-1]})"
        )
        print("\n".join(concerns) if concerns else "finite, falling, without leaps")
    return int(bool(concerns))


def compare_command(options: argparse.Namespace) -> int:
    """Compare two runs' losses; return 1 if they part."""
    from npu_plugins.diagnostics.losses import TOLERANCES, compare_losses, read_curve

    tolerance = TOLERANCES[options.dtype] if options.tolerance is None else options.tolerance
    if not 0 <= tolerance < math.inf or options.steps < 1:
        raise DiagnosticsError(
            f"--tolerance is {tolerance} and --steps {options.steps}; give 0 or more, and 1 or more"
        )
    first, second = (read_curve(path, options.key) for path in (options.first, options.second))
    found = compare_losses(first, second, tolerance=tolerance, steps=options.steps)
    if options.plot is not None:
        from npu_plugins.diagnostics.losses.plot import plot_comparison

        plot_comparison(found, options.plot, (str(options.first), str(options.second)))
    parts = found.divergence
    if options.json:
        rows: list[dict[str, Any]] = [{**asdict(row), "difference": row.difference} for row in found.rows]
        told = {"tolerance": tolerance, "divergence": None if parts is None else parts.step, "rows": rows}
        print(json.dumps(told, indent=1))
        return int(parts is not None)
    print(f"A: {first.source}\nB: {second.source}\n{'step':>6}  {'A':>12}  {'B':>12}  difference")
    every = max(1, len(found.rows) // ROWS)
    for place, row in enumerate(found.rows):
        if place % every == 0 or row in (found.rows[-1], parts):
            mark = "  <- they part" if row is parts else ""
            print(f"{row.step:>6}  {row.first:>12.6g}  {row.second:>12.6g}  {row.difference:>+10.2e}{mark}")
    print(found)
    if options.plot is not None:
        print(f"plot: {options.plot}")
    return int(parts is not None)
