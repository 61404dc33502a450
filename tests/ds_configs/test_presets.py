"""The presets and the ds-config command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ds_configs.cli import main
from ds_configs.errors import DsConfigError
from ds_configs.presets import (
    PRESET_DIR,
    describe_preset,
    load_preset,
    preset_names,
    preset_path,
    rewrite_presets,
    starting_points,
)
from tests.ds_configs.oracle import Oracle
from tests.ds_configs.resolve.runs import run_flags

OFFLOADS = {"zero2_offload": {"offload_optimizer"}, "zero3_offload": {"offload_optimizer", "offload_param"}}
# Those that leave batch, precision, clipping and optimizer to the Trainer's flags.
BY_FLAGS = ["zero0", "zero1", "zero1_tp2", "zero2", "zero2_offload", "zero3", "zero3_offload"]
WITH_NUMBERS = ["docs_zero2", "docs_zero3", "zero1_pp", "zero2_plain"]
# The blocks of the two strategy documents, typed from there.
DOCS_ZERO2 = """
{"zero_optimization": {"stage": 2, "allgather_partitions": true, "allgather_bucket_size": 2e8,
  "overlap_comm": true, "reduce_scatter": true, "reduce_bucket_size": 2e8, "contiguous_gradients": true},
 "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000},
 "train_batch_size": 256, "gradient_accumulation_steps": 4}
"""
DOCS_ZERO3 = """
{"train_batch_size": 256, "gradient_accumulation_steps": 4,
 "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16},
 "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
  "offload_param": {"device": "cpu", "pin_memory": true}, "overlap_comm": true, "contiguous_gradients": true,
  "stage3_gather_16bit_weights_on_model_save": true, "sub_group_size": 1e9, "reduce_bucket_size": "auto"},
 "gradient_clipping": 1.0, "steps_per_print": 100}
"""


def test_every_promised_preset_exists() -> None:
    assert preset_names() == sorted([*BY_FLAGS, *WITH_NUMBERS])
    assert starting_points() == sorted([*preset_names(), "zero3_nvme"])


def test_files_are_what_their_requests_generate(tmp_path: Path) -> None:
    """After a change of the generator: `python -m ds_configs.presets`."""
    rewrite_presets(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in PRESET_DIR.iterdir()
    )
    for path in tmp_path.iterdir():
        assert path.read_text(encoding="utf-8") == (PRESET_DIR / path.name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "block"), [("docs_zero2", DOCS_ZERO2), ("docs_zero3", DOCS_ZERO3)])
def test_documents_blocks_come_out_equal(name: str, block: str) -> None:
    assert load_preset(name) == json.loads(block)


def test_documents_bucket_size_is_a_number_as_written() -> None:
    zero = load_preset("docs_zero2")["zero_optimization"]
    assert type(zero["reduce_bucket_size"]) is float and zero["reduce_bucket_size"] == 200_000_000
    assert '"reduce_bucket_size": 2e8,' in preset_path("docs_zero2").read_text(encoding="utf-8")
    assert '"sub_group_size": 1e9,' in preset_path("docs_zero3").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", preset_names())
def test_preset_does_what_its_name_says(name: str) -> None:
    config = load_preset(name)
    zero = config["zero_optimization"]
    assert zero["stage"] == int(name.removeprefix("docs_")[4])
    offloaded = {key for key in zero if key.startswith("offload_")}
    assert offloaded == OFFLOADS.get(
        name, set(zero) & {"offload_optimizer", "offload_param"} if "docs" in name else set()
    )
    assert all(zero[key]["device"] == "cpu" for key in offloaded)
    assert config.get("tensor_parallel", {}).get("autotp_size") == (2 if name.endswith("_tp2") else None)
    assert ("pipeline" in config) == name.endswith("_pp")


@pytest.mark.parametrize("name", BY_FLAGS)
def test_preset_leaves_what_flags_decide_to_the_trainer(name: str) -> None:
    config = load_preset(name)
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        assert config[key] == "auto"
    assert config["fp16"]["enabled"] == config["bf16"]["enabled"] == config["gradient_clipping"] == "auto"


@pytest.mark.parametrize("name", [*BY_FLAGS, "zero1_pp", "zero2_plain"])
def test_preset_overlaps_no_communication(name: str) -> None:
    """HCCL users report wrong losses with it, and stage 3 turns it on when it is left out."""
    zero = load_preset(name)["zero_optimization"]
    assert zero.get("overlap_comm", zero["stage"] == 3) is False


@pytest.mark.parametrize("name", BY_FLAGS)
def test_loss_scale_does_not_overflow_in_the_first_steps(name: str) -> None:
    """2^16, DeepSpeed's own start, makes a small model skip its first steps."""
    assert load_preset(name)["fp16"]["initial_scale_power"] == 12


@pytest.mark.parametrize("name", ["zero3", "zero3_offload", "zero1_tp2", "docs_zero3"])
def test_presets_that_shard_parameters_save_whole_models(name: str) -> None:
    assert load_preset(name)["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_deepspeed_accepts_the_preset(name: str, precision: str, oracle: Oracle) -> None:
    """DeepSpeed's own parser takes it, the Trainer's presets after the Trainer has filled them."""
    config = load_preset(name)
    if name in BY_FLAGS:
        config = oracle.ask(
            "hf", config=config, run=run_flags(2, precision), model={"hidden_size": 128}, total=3
        )
    elif name == "docs_zero3":
        flags = run_flags(2, "fp16", gradient_accumulation_steps=4, per_device_train_batch_size=32)
        config = oracle.ask("hf", config=config, run=flags, model={"hidden_size": 128}, total=3)
    assert oracle.deepspeed(config, replicas=2) == ""


def test_unknown_preset_is_refused_with_the_names() -> None:
    with pytest.raises(
        DsConfigError, match="no preset is named 'zero9'; choose one of docs_zero2, .*zero0, zero1"
    ):
        load_preset("zero9")


def test_preset_that_lacks_a_value_says_where_to_give_it() -> None:
    with pytest.raises(
        DsConfigError, match="needs a folder on a drive.*generate --preset zero3_nvme --nvme-path"
    ):
        load_preset("zero3_nvme")


def test_descriptions() -> None:
    assert describe_preset("zero0") == "ZeRO stage 0: shards nothing"
    assert describe_preset("zero2_offload") == (
        "ZeRO stage 2: shards optimizer state, gradients; keeps optimizer state on the cpu"
    )
    assert describe_preset("zero3_nvme").endswith("keeps parameters on the nvme; needs --nvme-path")


def test_list_prints_one_line_for_each_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == starting_points()


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
