"""The command ds-config resolve."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ds_configs.cli import main
from ds_configs.presets import preset_path

RUN = ["--world-size", "2", "--model", "tiny-llama", "--bf16"]


def test_json_goes_to_stdout_and_the_table_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", str(preset_path("zero3")), *RUN]) == 0
    out, err = capsys.readouterr()
    config = json.loads(out)
    assert '"auto"' not in out
    assert config["train_batch_size"] == 16
    assert config["zero_optimization"]["reduce_bucket_size"] == 128 * 128
    table = [line.split("│")[1:5] for line in err.splitlines() if line.startswith("│")]
    rows = {key.strip(): (value.strip(), who.strip(), source.strip()) for key, value, who, source in table}
    assert rows["train_batch_size"] == ("16", "HF", "2 ranks × 8 × 1")
    assert rows["zero_optimization.reduce_bucket_size"] == ("16384", "HF", "hidden² (128: tiny-llama)")
    assert len(rows) == preset_path("zero3").read_text(encoding="utf-8").count('"auto"')


def test_output_goes_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "filled.json"
    assert main(["resolve", str(preset_path("zero0")), "--world-size", "4", "--output", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(path.read_text(encoding="utf-8"))["train_batch_size"] == 32


@pytest.mark.parametrize("spelling", ["per_device_train_batch_size", "per-device-train-batch-size"])
def test_flags_are_spelt_as_hf_spells_them_or_with_hyphens(
    spelling: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resolve", str(preset_path("zero0")), "--world-size", "1", f"--{spelling}", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["train_micro_batch_size_per_gpu"] == 3


def test_nothing_to_fill_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    config = {"train_batch_size": 8, "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 0}}
    path.write_text(json.dumps(config), encoding="utf-8")
    assert main(["resolve", str(path), "--world-size", "1"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == config
    assert err == 'nothing was "auto"\n'


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nothing.json", "--world-size", "2"], "nothing.json cannot be read"),
        ([str(preset_path("zero2")), *RUN, "--hidden", "3"], "--model and --hidden both say the width"),
        (
            [str(preset_path("zero2")), *RUN, "--output", "/no/such/folder/x"],
            "/no/such/folder/x cannot be written",
        ),
        (
            [str(preset_path("docs_zero3")), "--world-size", "2", "--hidden", "8", "--fp16"],
            "HF refuses a file that its flags contradict",
        ),
    ],
)
def test_refusals_are_one_line(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert reason in err
    assert err.startswith("ds-config: ") and err.count("\n") == 1
