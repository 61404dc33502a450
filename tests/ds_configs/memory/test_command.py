"""``ds-config memory`` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


def test_a_size_takes_any_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "--params", "7B", "--seq", "8192", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["parameters"] == 7_000_000_000


def test_an_open_micro_batch_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": "auto"}')
    assert main([*JOB, "--config", str(path)]) == 0
    assert (
        'train_micro_batch_size_per_gpu is "auto": 1 is taken; give --micro-batch' in capsys.readouterr().out
    )


def test_a_reader_that_goes_early_is_no_failure() -> None:
    """`ds-config memory … | head`: status 1 would say that the job does not fit."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "ds_configs.cli", "memory", "--params", "7B"]
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


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
        (["--params", "7B", "--hbm", "64"], "'64' is only 64 bytes"),
        (["--params", "7B", "--hccl-buffer", "200"], "'200' is only 200 bytes"),
        (["--params", "0"], "no whole number of parameters"),
        (["--params", "7B", "--tp", "0"], "tp is 0; give a whole number"),
        (["--params", "7B", "--world-size", "0"], "the world size is 0"),
        (["--params", "7B", "--seq", "0"], "sequence is 0"),
        (["--params", "7B", "--tp", "7"], "tp=7 does not divide the 32 attention heads"),
        (["--params", "7B", "--chunks", "2"], "chunks is 2 with schedule 1f1b"),
        (
            ["--params", "7B", "--schedule", "zb-v"],
            "schedule zb-v orders the stages of a pipeline, but pp is 1",
        ),
        (["--params", "7B", "--pp", "2", "--schedule", "interleaved"], "has 2 or more chunks"),
        (["--params", "7B", "--pp", "2", "--schedule", "zb-v", "--chunks", "3"], "and no other a choice"),
        (["--params", "7B", "--recomputation", "selective"], "is Megatron's"),
        (
            ["--params", "7B", "--recomputation", "selective", "--kernels", "megatron"],
            "flash attention keeps",
        ),
        (["--model", "llama-2-7b", "--seq", "8192"], "exceeds the 4096 positions"),
        (["--model", "mixtral-8x7b", "--world-size", "6", "--ep", "3"], "which has 8 experts"),
        (["--params", "7B", "--ep", "1", "--plot", "/no/such/folder/x.png"], "cannot be written"),
    ],
)
def test_refusals_are_one_sentence(args: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", *args]) == 2
    err = capsys.readouterr().err
    assert reason in err
    assert "Traceback" not in err
