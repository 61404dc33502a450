"""`--dry_run`: what a run would do, without a device, a launcher or data."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ds_configs.presets import preset_path
from hf_integration.dry_run import shortened
from hf_integration.errors import TrainingInputError
from hf_integration.npu_trainer import NpuTrainer
from hf_integration.train import main

DRY = ["--dry_run", "--config_name", "tiny-llama", "--report_to", "none"]
DIVIDED = ["--tensor_model_parallel_size", "2", "--pipeline_model_parallel_size", "2"]


def report(argv: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a dry run prints."""
    assert main([*DRY, *argv, "--output_dir", str(folder / "out")]) == 0
    assert not (folder / "out").exists()
    return capsys.readouterr().out


def test_it_shows_mesh_layers_memory_and_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_integration.device.visible_device_type", lambda: None)
    flags = ["--deepspeed", str(preset_path("zero1")), *DIVIDED, "--zero_stage", "0", "--bf16"]
    flags += ["--gradient_accumulation_steps", "4", "--per_device_train_batch_size", "2"]
    text = report(flags, tmp_path, capsys)
    assert "mesh          tp 2 × pp 2 × dp 1 = 4 ranks" in text
    assert "2 rows × 4 micro-batches × 1 replicas = 8 rows of 256 tokens a step" in text
    assert "schedule      1f1b, recomputation none" in text
    ranks = [line.split(maxsplit=6) for line in text.splitlines() if line[:5].strip().isdigit()]
    assert [line[:4] for line in ranks] == [
        ["0", "0", "0", "0"], ["1", "1", "0", "0"], ["2", "0", "0", "1"], ["3", "1", "0", "1"]
    ]  # fmt: skip
    assert ranks[0][6] == ranks[1][6] == "0: model.embed_tokens, model.layers.0"
    assert ranks[2][6] == "1: model.layers.1, model.norm, lm_head"
    assert all(0 < int(line[4]) < int(line[5]) for line in ranks)
    assert "optimizer states" in text
    config = json.loads(text[text.index("configuration") + len("configuration") :])
    assert config["zero_optimization"]["stage"] == 0
    assert config["bf16"] == {"enabled": True}
    assert config["train_batch_size"] == 8
    assert config["pipeline"] == {"stages": 2}


def test_it_shows_virtual_stages_of_a_tied_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--pipeline_model_parallel_size", "2", "--pipeline_schedule", "zb-v"]
    text = report([*flags, "--gradient_accumulation_steps", "4"], tmp_path, capsys)
    lines = [line for line in text.splitlines() if line[:5].strip().isdigit()]
    assert lines[0].endswith("0: model.embed_tokens; 3: model.norm, lm_head")


def test_it_shows_a_run_that_divides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = report(["--deepspeed", str(preset_path("zero3"))], tmp_path, capsys)
    assert "mesh          tp 1 × pp 1 × dp 1 = 1 ranks" in text
    assert '"stage": 3' in text
    assert "none: without DeepSpeed" in report([], tmp_path, capsys)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([*DIVIDED, "--zero_stage", "2"], "ZeRO stage 2 divides the gradients"),
        (["--pipeline_model_parallel_size", "9"], "9 stages for 5 layers"),
        ([*DIVIDED, "--pipeline_schedule", "interleaved"], "micro-batch"),
        ([*DIVIDED, "--pipeline_schedule", "fast"], "pipeline.schedule is 'fast'"),
        ([*DIVIDED, "--optim", "adafactor"], "optim is 'adafactor'"),
        ([*DIVIDED, "--neftune_noise_alpha", "5"], "neftune_noise_alpha is 5"),
        ([*DIVIDED, "--deepspeed", str(preset_path("docs_zero2"))], "ZeRO stage 2"),
        (
            [*DIVIDED, "--zero_stage", "1", "--deepspeed", str(preset_path("docs_zero2")), "--fp16"],
            "train_batch_size",
        ),
    ],
)
def test_what_would_be_refused_is_refused(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*DRY, *flags, "--output_dir", str(tmp_path / "out")]) == 2
    complaint = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train.py: ")]
    assert len(complaint) == 1
    assert message in complaint[0]


def test_consecutive_layers_become_a_range() -> None:
    names = ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.layers.2", "model.norm"]
    assert shortened(names) == "model.embed_tokens, model.layers.0–2, model.norm"
    assert shortened(["transformer.h.3", "lm_head"]) == "transformer.h.3, lm_head"


def test_a_trainer_is_not_made_for_it() -> None:
    with pytest.raises(TrainingInputError, match="dry_run is for train.py"):
        NpuTrainer(args=SimpleNamespace(dry_run=True))
