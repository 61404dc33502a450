"""What the command line refuses, each with one sentence and a non-zero exit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ds_configs.presets import load_preset, preset_path
from hf_integration.arguments import parse_arguments
from hf_integration.errors import TrainingInputError
from hf_integration.host_only import wants_host_only
from hf_integration.npu_arguments import keep_model_savable
from hf_integration.train import main

CPU = ["--use_cpu", "--config_name", "tiny-llama"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--use_cpu"], "give exactly one of --model_name_or_path DIR"),
        ([*CPU, "--model_name_or_path", "x"], "give exactly one of --model_name_or_path DIR"),
        (["--use_cpu", "--config_name", "big"], "--config_name big is unknown; choose one of tiny-llama, "),
        (["--use_cpu", "--model_name_or_path", "nowhere"], "nowhere is no directory with a config.json"),
        ([*CPU, "--tokenizer_name", "nowhere"], "nowhere is no directory with a tokenizer_config.json"),
        ([*CPU, "--train_file", "nowhere.txt"], "--train_file nowhere.txt does not exist"),
        ([*CPU, "--validation_file", "nowhere.txt"], "--validation_file nowhere.txt does not exist"),
        ([*CPU, "--block_size", "1"], "--block_size must be at least 2 tokens, got 1"),
        ([*CPU, "--block_size", "2000"], "--block_size 2000 is longer than the 1024 positions"),
        ([*CPU, "--validation_fraction", "1"], "must lie between 0 and 1"),
        ([*CPU, "--stdlib_bytes", "0"], "--stdlib_bytes must be at least 1, got 0"),
        ([*CPU, "--sample_tokens", "-1"], "--sample_tokens must not be negative, got -1"),
        ([*CPU, "--sample_prompt", ""], "--sample_prompt must not be empty"),
        ([*CPU, "--do_predict"], "--do_predict is not offered here"),
        ([*CPU, "--pipeline_timeline", "1", "--do_train", "false"], "measures a training step"),
        ([*CPU, "--tensor_model_parallel_sise", "2"], "unknown arguments --tensor_model_parallel_sise 2"),
        ([*CPU, "--fp16", "--bf16"], "At most one of fp16 and bf16"),
        ([*CPU, "--deepspeed", "nowhere.json"], "--deepspeed nowhere.json does not exist"),
        (
            [*CPU, "--bf16", "--deepspeed", str(preset_path("docs_zero3"))],
            "--bf16 is given but fp16.enabled is true in the DeepSpeed configuration",
        ),
        ([*CPU, "--deepspeed", str(preset_path("zero2"))], "would train without DeepSpeed"),
    ],
)
def test_bad_arguments_give_one_sentence(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--output_dir", str(tmp_path / "out")]) == 2
    complaint = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train.py: ")]
    assert len(complaint) == 1
    assert message in complaint[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{'a': 1}", "is not the strict JSON that HF needs"),
        ("[]", 'has no "zero_optimization" section'),
        ('{"train_batch_size": "auto"}', 'has no "zero_optimization" section'),
        ('{"zero_optimization": 3}', 'has no "zero_optimization" section'),
        (
            preset_path("zero1_pp").read_text(encoding="utf-8"),
            "activation_checkpoint_interval, use_reentrant",
        ),
    ],
)
def test_bad_deepspeed_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(TrainingInputError, match=message):
        parse_arguments([*CPU, "--deepspeed", str(file), "--output_dir", str(tmp_path)])


def test_cpu_forced_by_the_environment_is_refused_with_deepspeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    argv = [
        "--config_name",
        "tiny-llama",
        "--deepspeed",
        str(preset_path("zero2")),
        "--output_dir",
        str(tmp_path),
    ]
    with pytest.raises(TrainingInputError, match="ACCELERATE_USE_CPU together with --deepspeed"):
        parse_arguments(argv)


def test_no_device_and_no_use_cpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_integration.device.visible_device_type", lambda: None)
    with pytest.raises(TrainingInputError, match="no NPU is visible to torch; source CANN's set_env.sh"):
        parse_arguments(["--config_name", "tiny-llama", "--output_dir", str(tmp_path)])


def test_stage_3_is_made_to_save_whole_weights_unless_the_file_forbids_it() -> None:
    config = load_preset("zero3")
    del config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"]
    keep_model_savable(config)
    assert config == load_preset("zero3")
    config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = False
    with pytest.raises(TrainingInputError, match="is false, so from_pretrained could not load"):
        keep_model_savable(config)
    untouched = json.loads(json.dumps(load_preset("zero2")))
    keep_model_savable(untouched)
    assert untouched == load_preset("zero2")


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["--use_cpu"], True),
        (["--use_cpu", "--bf16"], True),
        (["--use_cpu", "True"], True),
        (["--use_cpu=false"], False),
        (["--use_cpu", "no"], False),
        (["--config_name", "tiny-llama"], False),
    ],
)
def test_use_cpu_is_seen_before_anything_is_imported(argv: list[str], wanted: bool) -> None:
    assert wants_host_only(argv) is wanted
