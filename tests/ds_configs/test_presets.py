"""The presets and the ds-config command."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ds_configs.cli import main
from ds_configs.errors import DsConfigError
from ds_configs.presets import describe_preset, load_preset, preset_names, preset_path

OFFLOADS = {"zero2_offload": {"offload_optimizer"}, "zero3_offload": {"offload_optimizer", "offload_param"}}


def test_every_promised_preset_exists() -> None:
    assert preset_names() == ["zero0", "zero1", "zero2", "zero2_offload", "zero3", "zero3_offload"]


@pytest.mark.parametrize("name", preset_names())
def test_preset_does_what_its_name_says(name: str) -> None:
    zero = load_preset(name)["zero_optimization"]
    assert zero["stage"] == int(name[4])
    offloaded = {key for key in zero if key.startswith("offload_")}
    assert offloaded == OFFLOADS.get(name, set())
    assert all(zero[key]["device"] == "cpu" for key in offloaded)


@pytest.mark.parametrize("name", preset_names())
def test_preset_leaves_what_flags_decide_to_the_trainer(name: str) -> None:
    config = load_preset(name)
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        assert config[key] == "auto"
    assert config["fp16"]["enabled"] == config["bf16"]["enabled"] == config["gradient_clipping"] == "auto"
    # HCCL users report wrong losses with it, and stage 3 turns it on when it is left out.
    assert config["zero_optimization"].get("overlap_comm", config["zero_optimization"]["stage"] == 3) is False


@pytest.mark.parametrize("name", ["zero3", "zero3_offload"])
def test_stage_3_presets_save_whole_models(name: str) -> None:
    assert load_preset(name)["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True


def test_unknown_preset_is_refused_with_the_names() -> None:
    with pytest.raises(DsConfigError, match="no preset is named 'zero9'; choose one of zero0, zero1"):
        load_preset("zero9")


def test_descriptions() -> None:
    assert describe_preset("zero0") == "ZeRO stage 0: shards nothing"
    assert describe_preset("zero2_offload") == (
        "ZeRO stage 2: shards optimizer state, gradients; keeps optimizer state on the cpu"
    )


def test_list_prints_one_line_for_each_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == preset_names()


def test_show_prints_the_json_or_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "zero2"]) == 0
    assert json.loads(capsys.readouterr().out) == load_preset("zero2")
    assert main(["show", "zero2", "--path"]) == 0
    assert capsys.readouterr().out.strip() == str(preset_path("zero2"))


def test_show_of_an_unknown_preset_fails_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "zero9"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ds-config: no preset is named 'zero9'")
    assert captured.err.count("\n") == 1


def test_package_needs_neither_torch_nor_deepspeed() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['deepspeed'] = None; "
        "from ds_configs.cli import main; sys.exit(main(['list']))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0
