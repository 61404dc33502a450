"""``ds-config memory`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ds_configs.cli import main

JOB = ["memory", "--model", "llama-3-8b", "--world-size", "8", "--stage", "2"]


def test_table_names_the_terms_and_the_dominant_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOB, "--micro-batch", "2"]) == 0
    out = capsys.readouterr().out
    assert "optimizer states" in out
    assert "Most is activations" in out


def test_what_does_not_fit_ends_with_1_and_the_cheapest_mend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOB, "--micro-batch", "4", "--hbm", "64GiB"]) == 1
    out = capsys.readouterr().out
    assert "does not fit 64.00 GiB" in out
    assert "Cheapest change that makes it fit: micro-batch" in out
    assert "Cost:" in out


def test_what_fits_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOB, "--hbm", "64GiB", "--seq", "512"]) == 0
    assert "to spare" in capsys.readouterr().out


def test_json_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOB, "--hbm", "40GiB", "--format", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["fits"] is False
    for stage in report["stages"]:
        assert sum(stage["terms"].values()) == stage["total_bytes"]
    assert report["ways_to_fit"][0]["total_bytes"] <= report["capacity_bytes"] < report["total_bytes"]


def test_a_ds_config_is_read_and_flags_win(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}))
    totals = []
    for flags in ([], ["--stage", "0"]):
        args = [
            "memory",
            "--model",
            "llama-2-7b",
            "--world-size",
            "64",
            "--config",
            str(path),
            "--format",
            "json",
        ]
        main([*args, *flags])
        totals.append(json.loads(capsys.readouterr().out)["total_bytes"])
    assert totals[1] > 3 * totals[0]


@pytest.mark.parametrize("flags", [[], ["--pp", "2"]])
def test_plot_is_a_png(tmp_path: Path, flags: list[str]) -> None:
    path = tmp_path / "memory.png"
    args = ["memory", "--params", "1B", "--world-size", "4", "--plot", str(path), "--hbm", "64GiB", *flags]
    assert main(args) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--params", "7.5"], "no whole number of parameters"),
        (["--model", "no-such-model"], "nothing is downloaded"),
        (["--params", "7B", "--pp", "2", "--stage", "3"], "pipeline takes stage 0 or 1"),
        (["--params", "7B", "--tp", "3", "--world-size", "8"], "does not divide 8 ranks"),
        (["--params", "7B", "--dtype", "int8"], "choose among fp32, bf16, fp16"),
        (["--params", "7B", "--hbm", "lots"], "no size of memory"),
        (["--params", "7B", "--ep", "1", "--plot", "/no/such/folder/x.png"], "cannot be written"),
    ],
)
def test_refusals_are_one_sentence(args: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", *args]) == 2
    err = capsys.readouterr().err
    assert reason in err
    assert "Traceback" not in err
