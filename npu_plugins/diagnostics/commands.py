"""What `npu-plugins check` and `compare-loss` do."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from dataclasses import asdict
from typing import Any

from npu_plugins.diagnostics.errors import DiagnosticsError
from npu_plugins.diagnostics.strict_json import strict_json

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
    for each in outcomes:
        if each.tensors < 1 and not each.differences:
            raise DiagnosticsError(
                f"{options.path} has a record of step {each.step} in which no tensor was compared; "
                "train on several ranks that hold the same tensors"
            )
    bad = [each for each in outcomes if each.differences]
    if options.json:
        print(strict_json(records))
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
    print(strict_json({**asdict(found), "same": found.same}) if options.json else found)
    return int(not found.same)


def _memory(options: argparse.Namespace) -> int:
    from npu_plugins.diagnostics.memory import RankMemory, imbalances, memory_report
    from npu_plugins.diagnostics.records import read_records

    records = read_records(options.path, "memory", "--check_memory")
    try:
        by_step = {each["step"]: each for each in reversed(records)}
        record = records[-1] if options.step is None else by_step.get(options.step)
        if record is None:
            steps = ", ".join(map(str, reversed(by_step)))
            raise DiagnosticsError(f"step {options.step} was not measured; give one of {steps}")
        ranks = [RankMemory.from_plain(each) for each in record["ranks"]]
        simulated = bool(record["simulated"])
    except (KeyError, TypeError, ValueError) as error:
        raise DiagnosticsError(
            f"{options.path} has records that are none of --check_memory ({type(error).__name__}: {error}); "
            "delete its folder checks and train again"
        ) from error
    if not ranks:
        raise DiagnosticsError(
            f"{options.path} has a record of --check_memory of step {record['step']} without ranks; delete "
            "its folder checks and train again"
        )
    if options.json:
        print(strict_json({**record, "imbalances": [asdict(each) for each in imbalances(ranks)]}))
    else:
        print(memory_report(ranks, step=record["step"], simulated=simulated))
    return int(bool(imbalances(ranks)))


def _loss(options: argparse.Namespace) -> int:
    from npu_plugins.diagnostics.losses import concerns_of, read_curve

    of_two = [
        f"--{name}" for name in ("steps", "dtype", "tolerance", "plot") if getattr(options, name) is not None
    ]
    if of_two:
        raise DiagnosticsError(f"{' and '.join(of_two)} compare two runs; give --reference RUN")
    curve = read_curve(options.path, options.key)
    concerns = concerns_of(curve)
    if options.json:
        print(strict_json({**asdict(curve), "concerns": concerns}))
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
    from npu_plugins.diagnostics.losses.compare import STEPS

    tolerance = TOLERANCES[options.dtype or "bf16"] if options.tolerance is None else options.tolerance
    steps = STEPS if options.steps is None else options.steps
    if not 0 <= tolerance < math.inf or steps < 1:
        raise DiagnosticsError(
            f"--tolerance is {tolerance} and --steps {steps}; give 0 or more, and 1 or more"
        )
    first, second = (read_curve(path, options.key) for path in (options.first, options.second))
    found = compare_losses(first, second, tolerance=tolerance, steps=steps)
    if options.plot is not None:
        from npu_plugins.diagnostics.losses.plot import plot_comparison

        try:
            plot_comparison(found, options.plot, (str(options.first), str(options.second)))
        except (OSError, ValueError) as error:  # matplotlib tells an unknown ending by a ValueError
            raise DiagnosticsError(
                f"{options.plot} cannot be drawn ({error}); give a file that can be written, such as loss.png"
            ) from error
    parts = found.divergence
    if options.json:
        rows: list[dict[str, Any]] = [{**asdict(row), "difference": row.difference} for row in found.rows]
        told: dict[str, Any] = {"tolerance": tolerance, "divergence": None if parts is None else parts.step}
        told |= {"not_finite": None if found.not_finite is None else found.not_finite.step, "rows": rows}
        print(strict_json(told))
        return int(not found.agree)
    print(f"A: {first.source}\nB: {second.source}\n{'step':>6}  {'A':>12}  {'B':>12}  difference")
    every = max(1, len(found.rows) // ROWS)
    for place, row in enumerate(found.rows):
        if place % every == 0 or row in (found.rows[-1], parts):
            mark = "  <- they part" if row is parts else ""
            print(f"{row.step:>6}  {row.first:>12.6g}  {row.second:>12.6g}  {row.difference:>+10.2e}{mark}")
    print(found)
    if options.plot is not None:
        print(f"plot: {options.plot}")
    return int(not found.agree)
