"""What resolve refuses, and that it does so in one sentence with the mend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds_configs.errors import DsConfigError
from ds_configs.presets import load_preset
from ds_configs.resolve import TrainingRun, Width, model_width, read_config, resolve, width_of_config

DECAY = {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": "auto"}}


def with_scheduler(**params: Any) -> dict[str, Any]:
    return {
        **load_preset("zero2"),
        "scheduler": {"type": "WarmupDecayLR", "params": {**DECAY["params"], **params}},
    }


@pytest.mark.parametrize(
    ("config", "flags", "sentence"),
    [
        (
            {**load_preset("zero2"), "train_batch_size": 256},
            {"world_size": 8},
            r"train_batch_size is 256 in the file but 64 by the flags \(8 ranks × 8 × 1\): HF refuses",
        ),
        (
            {**load_preset("zero2"), "gradient_clipping": 0.5, "gradient_accumulation_steps": 2},
            {"world_size": 1},
            "gradient_accumulation_steps is 2 in the file but 1 by .*; gradient_clipping is 0.5 in the file",
        ),
        (
            {"train_batch_size": 100, "zero_optimization": {"stage": 1}, "gradient_accumulation_steps": 1},
            {"world_size": 8, "per_device_train_batch_size": 12},
            "train_batch_size is 100 in the file but 96",
        ),
        ({"train_batch_size": "auto"}, {"world_size": 1}, 'no zero_optimization section.*"stage": 0'),
        (
            {"zero_optimization": {"stage": 1}},
            {"world_size": 1},
            'neither train_batch_size nor .*write "auto" for both',
        ),
        (
            {"train_batch_size": "8", "zero_optimization": {"stage": 1}},
            {"world_size": 1},
            "train_batch_size is '8' in the file but 8",
        ),
        (load_preset("zero2"), {"world_size": 1}, 'reduce_bucket_size: "auto" follows.*--model or --hidden'),
        (with_scheduler(), {"world_size": 1}, 'total_num_steps is "auto".*--max_steps, or --num_examples'),
        (
            with_scheduler(),
            {"world_size": 1, "max_steps": 10, "warmup_steps": 20},
            "warmup_num_steps=20 is more than total_num_steps=10, so the rate would never decay; lower",
        ),
        (
            with_scheduler(total_num_steps=0),
            {"world_size": 1, "warmup_steps": 1},
            "total_num_steps is 0; DeepSpeed needs a whole number, 1 or more",
        ),
        (
            with_scheduler(warmup_num_steps=0, total_num_steps=5),
            {"world_size": 1, "warmup_steps": 0.5},
            "warmup_num_steps is 0",
        ),
        (
            {**load_preset("zero0"), "fp16": {"enabled": True}, "bf16": {"enabled": "auto"}},
            {"world_size": 1, "bf16": True},
            "fp16.enabled is true in the file, but the run is --bf16, which accelerate refuses; use --fp16",
        ),
        (
            {**load_preset("zero0"), "fp16": {"enabled": True}},
            {"world_size": 1},
            "fp16.enabled is True in the file but False by --fp16",
        ),
        (
            {
                **load_preset("zero0"),
                "zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "auto"}},
            },
            {"world_size": 1},
            'nvme_path is "auto", which accelerate turns into a folder called none',
        ),
        (
            {**load_preset("zero0"), "tsar": "auto"},
            {"world_size": 1},
            'tsar is "auto".*knows no such key; remove',
        ),
        (
            {**load_preset("zero0"), "optimizer": "auto"},
            {"world_size": 1},
            "optimizer is 'auto', where an object",
        ),
        ({**load_preset("zero0"), "amp": {}}, {"world_size": 1}, "amp is removed.*mend it first"),
        (
            {
                **load_preset("zero0"),
                "zero_optimization": {"stage": 0, "stages": 2, "reduce_bucket_size": 0.5},
            },
            {"world_size": 1},
            r"zero_optimization.stages is not a key .*\(and 1 more: `ds-config lint` lists them\); mend",
        ),
    ],
)
def test_config_that_cannot_run(config: dict[str, Any], flags: dict[str, Any], sentence: str) -> None:
    width = None if "follows" in sentence else Width(64, "a model")
    with pytest.raises(DsConfigError, match=sentence) as refusal:
        resolve(config, TrainingRun(**flags), width)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"world_size": 0}, "world_size is 0; give a whole number, 1 or more"),
        ({"per_device_train_batch_size": 1.5}, "per_device_train_batch_size is 1.5"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; give a number, 0 or more"),
        ({"adam_beta2": 1.0}, "adam_beta2 is 1.0; give a number from 0 up to 1"),
        ({"max_steps": 0}, "max_steps is 0; give at least 1, so that total_num_steps is not 0"),
        ({"warmup_steps": 2.5}, "warmup_steps is 2.5; give a whole number of steps, or a share below 1"),
        ({"num_train_epochs": 0}, "num_train_epochs is 0"),
        ({"num_examples": 0}, "num_examples is 0"),
        ({"fp16": True, "bf16": True}, "fp16 and bf16 are both set, which the Trainer refuses"),
    ],
)
def test_flags_that_the_trainer_refuses(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DsConfigError, match=sentence):
        TrainingRun(**{"world_size": 1, **flags})


def test_a_training_set_without_a_whole_batch_is_refused() -> None:
    run = TrainingRun(8, num_examples=20, per_device_train_batch_size=4, dataloader_drop_last=True)
    with pytest.raises(DsConfigError, match="20 training sequences fill no batch of 4 on each of 8 ranks"):
        resolve(with_scheduler(), run, Width(64, "a model"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"a": 1,}', "is not the strict JSON that HF reads .*line 1 column.*ds-config lint"),
        ('{"a": 1, "a": 2}', "the key 'a' is there twice"),
        ('{"a": NaN}', "holds NaN, which is no JSON number"),
        ("[1, 2]", r"holds \[1, 2\], not a JSON object"),
        ("[" * 100_000, "is not the strict JSON"),
        (b"\xff\xfe{}", "is not the strict JSON"),
    ],
)
def test_files_that_are_no_configuration(text: str | bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DsConfigError, match=sentence) as refusal:
        read_config(str(path))
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DsConfigError, match="cannot be read: No such file"):
        read_config(str(tmp_path / "nothing.json"))


@pytest.mark.parametrize(
    ("config", "hidden", "plain"),
    [
        ({"hidden_size": 64, "text_config": {"hidden_size": 32}}, 64, True),
        ({"model_type": "gpt2", "n_embd": 48}, 48, True),
        ({"hidden_sizes": [16, 96, 32]}, 96, True),
        ({"text_config": {"hidden_size": 32}}, 32, False),
        ({"text_config": {"model_type": "opt", "hidden_sizes": [8, 4]}}, 8, False),
    ],
)
def test_width_is_looked_for_in_hf_s_order(config: dict[str, Any], hidden: int, plain: bool) -> None:
    width = width_of_config(config, "config.json")
    assert (width.hidden, width.plain) == (hidden, plain)


def test_models_are_found_by_directory_file_and_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 72}), encoding="utf-8")
    assert model_width(str(tmp_path)).hidden == model_width(str(tmp_path / "config.json")).hidden == 72
    assert model_width("llama-1b").hidden == 2048
    assert model_width("llama-2-7b").hidden == 4096


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "cannot be read as a model's config.json"),
        ("[]", "holds no JSON object"),
        ('{"n_embd": 3}', "neither hidden_size nor hidden_sizes.*give --hidden"),
        ('{"hidden_size": "64"}', "the width of .* is '64'"),
    ],
)
def test_models_without_a_width_are_refused(content: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(DsConfigError, match=sentence):
        model_width(str(tmp_path))


def test_an_unknown_model_is_refused_with_the_names() -> None:
    with pytest.raises(DsConfigError, match="neither a directory.*tiny-llama.*nothing is downloaded"):
        model_width("meta/llama-9")
