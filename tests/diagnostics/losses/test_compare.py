"""Runs part where their losses differ by more than rounding; what is strange about one run is told."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.cli import main
from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.diagnostics.losses import TOLERANCES, Curve, compare_losses, concerns_of
from npu_plugins.diagnostics.records import append_record


def curve(values: list[float], every: int = 1, digits: int = 17) -> Curve:
    """Losses of a run that logs every so many steps."""
    return Curve("run", tuple(range(every, every * len(values) + 1, every)), tuple(values), digits)


def falling(count: int = 100) -> list[float]:
    """A usual run."""
    return [1 + 4 * math.exp(-step / 30) for step in range(count)]


@given(st.sampled_from(sorted(TOLERANCES)), st.integers(1, 99), st.floats(1.5, 50))
def test_the_first_step_out_of_tolerance_is_named(dtype: str, step: int, times: float) -> None:
    tolerance, values = TOLERANCES[dtype], falling()
    other = [
        value * (1 + tolerance * (times if place >= step else 0.4) * (-1) ** place)
        for place, value in enumerate(values)
    ]
    found = compare_losses(curve(values), curve(other), tolerance=tolerance)
    assert found.divergence is not None
    assert found.divergence.step == step + 1
    assert f"part at step {step + 1}:" in str(found)
    assert compare_losses(curve(values), curve(values), tolerance=0).divergence is None


def test_few_decimals_are_no_difference() -> None:
    values = falling()
    rounded = [round(value, 2) for value in values]
    assert compare_losses(curve(values), curve(rounded, digits=2), tolerance=0).divergence is None


def test_runs_that_log_at_other_steps_are_compared_by_means() -> None:
    values = falling()
    means = [sum(values[start : start + 10]) / 10 for start in range(0, 100, 10)]
    found = compare_losses(curve(values), curve(means, every=10), tolerance=1e-12)
    assert [row.step for row in found.rows] == list(range(10, 101, 10))
    assert found.divergence is None


def test_only_the_first_steps_count() -> None:
    values = falling(200)
    other = [value * (1 if step < 100 else 2) for step, value in enumerate(values)]
    assert compare_losses(curve(values), curve(other)).divergence is None
    found = compare_losses(curve(values), curve(other), steps=200).divergence
    assert found is not None
    assert found.step == 101


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda step, value: 4 * value, "The second is 4 times the first throughout"),
        (lambda step, value: value + 0.5, "They differ from the beginning"),
        (lambda step, value: value + 0.5 * (step > 20), "The beginnings agree"),
        (lambda step, value: math.nan if step == 50 else value, "One of them is not finite"),
    ],
)
def test_the_kind_of_difference_gives_a_hint(change: Any, words: str) -> None:
    other = [change(step, value) for step, value in enumerate(falling())]
    assert words in str(compare_losses(curve(falling()), curve(other)))


def test_runs_that_are_not_finite_do_not_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def strict(text: str) -> Any:
        return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    nowhere = [math.nan] * 5
    for values, step in ((nowhere, 1), ([2.0, 1.5, *nowhere], 3), ([2.0, *[math.inf] * 4], 2)):
        found = compare_losses(curve(values), curve(values))
        assert not found.agree and found.divergence is None
        assert f"the losses of both runs are not finite from step {step} on" in str(found)
    assert compare_losses(curve(falling()), curve(falling())).agree
    one, two = (write(tmp_path / name, [2.0, math.nan, -math.inf]) for name in ("one", "two"))
    assert main(["compare-loss", str(one), str(two)]) == 1
    assert "not finite from step 2 on" in capsys.readouterr().out
    assert main(["compare-loss", str(one), str(two), "--json"]) == 1
    told = strict(capsys.readouterr().out)
    assert (told["divergence"], told["not_finite"]) == (None, 2)
    assert [row["first"] for row in told["rows"]] == [2.0, "NaN", "-Infinity"]
    assert main(["check", "loss", str(one), "--json"]) == 1
    assert strict(capsys.readouterr().out)["values"] == [2.0, "NaN", "-Infinity"]


@pytest.mark.parametrize(
    ("kind", "record", "words"),
    [
        ("memory", {"step": 4, "ranks": [], "simulated": True}, "of step 4 without ranks; delete"),
        ("gradients", {"what": "gradients", "tensors": 0, "differences": [], "step": 4}, "no tensor was"),
    ],
)
def test_records_of_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, record: dict[str, Any], words: str
) -> None:
    append_record(tmp_path, kind, record)
    assert main(["check", kind, str(tmp_path)]) == 1
    assert words in capsys.readouterr().err


def test_runs_without_common_steps_are_refused() -> None:
    with pytest.raises(DiagnosticsError, match="of which 0 of the first 100 is in both"):
        compare_losses(curve([1.0, 2.0], every=3), curve([1.0], every=5))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda step, value: math.inf if step > 80 else value, "is not finite at step 82, and at 18 further"),
        (lambda step, value: 0.0 if step > 80 else value, "the Trainer logs 0 for a loss that is not finite"),
        (lambda step, value: 2.5 if step > 40 else value, "at 59 entries in a row from step 42; nothing is"),
        (lambda step, value: value * 3 if step in (40, 60) else value, "leaps up at steps 41, 61;"),
        (lambda step, value: value + step / 10, "the loss has risen from"),
    ],
)
def test_what_is_strange_about_a_run(change: Any, words: str) -> None:
    values = [change(step, value) for step, value in enumerate(falling())]
    assert any(words in each for each in concerns_of(curve(values)))
    assert concerns_of(curve(falling())) == []


@given(st.integers(0, 2**32))
def test_a_noisy_run_is_not_strange(seed: int) -> None:
    import random

    drawn = random.Random(seed)
    assert concerns_of(curve([value * drawn.gauss(1, 0.02) for value in falling()])) == []


def write(folder: Path, values: list[float]) -> Path:
    """Write a run's log."""
    folder.mkdir()
    lines = [json.dumps({"step": step, "loss": value}) for step, value in enumerate(values, 1)]
    (folder / "log.jsonl").write_text("\n".join(lines))
    return folder


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path / "one", falling())
    many = write(
        tmp_path / "many", [value * (1.3 if step > 30 else 1.001) for step, value in enumerate(falling())]
    )
    plot = tmp_path / "plots" / "losses.png"
    assert main(["compare-loss", str(one), str(many), "--plot", str(plot)]) == 1
    told = capsys.readouterr().out
    assert "    32       2.42328       3.15026   +2.31e-01  <- they part\n" in told
    assert "the losses part at step 32:" in told
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert main(["compare-loss", str(one), str(many), "--steps", "30"]) == 0
    assert "agree within 0.02" in capsys.readouterr().out
    assert main(["compare-loss", str(one), str(many), "--steps", "30", "--dtype", "fp32", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["divergence"] == 1
    assert main(["check", "loss", str(many)]) == 1
    assert "leaps up at step" in capsys.readouterr().out
    assert main(["check", "loss", str(one)]) == 0
    assert main(["check", "loss", str(many), "--reference", str(one)]) == 1
    capsys.readouterr()
    assert main(["compare-loss", str(one), str(many), "--tolerance", "-1"]) == 1
    assert "--tolerance is -1.0" in capsys.readouterr().err
