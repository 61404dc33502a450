"""The command ds-config generate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ds_configs.cli import main
from ds_configs.presets import load_preset, starting_points


def generated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    """What the command prints for ``arguments``."""
    assert main(["generate", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_option_reaches_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    config = generated(
        capsys,
        *("--for", "deepspeed", "--stage", "3", "--precision", "fp16", "--model", "tiny-llama"),
        *("--train-batch", "64", "--accumulation", "2", "--world-size", "8", "--clipping", "0.5"),
        *("--optimizer", "adam", "lr=1e-4", "betas=0.8,0.9"),
        *("--scheduler", "WarmupDecayLR", "total_num_steps=100", "warmup_num_steps=5", "warmup_type=linear"),
        *(
            "--offload-optimizer",
            "nvme",
            "pin_memory=false",
            "--offload-param",
            "cpu",
            "--nvme-path",
            "/local_nvme",
        ),
        *("--zero", "sub_group_size=1e8", "--fp16", "hysteresis=3", "--aio", "queue_depth=32"),
        *("--grad-accum-dtype", "fp32", "--steps-per-print", "7"),
        "--activation-checkpointing",
    )
    assert config["train_micro_batch_size_per_gpu"] == 4
    assert config["gradient_clipping"] == 0.5
    assert config["fp16"]["hysteresis"] == 3
    assert config["optimizer"]["type"] == "Adam"
    assert config["optimizer"]["params"]["betas"] == [0.8, 0.9]
    assert config["scheduler"]["params"]["warmup_max_lr"] == 1e-4
    assert config["scheduler"]["params"]["warmup_type"] == "linear"
    zero = config["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": False}
    assert zero["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert zero["sub_group_size"] == 1e8
    assert zero["stage3_param_persistence_threshold"] == 1280
    assert config["aio"]["queue_depth"] == 32
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}
    assert config["steps_per_print"] == 7
    assert config["activation_checkpointing"]["partition_activations"] is False


def test_parallelism_reaches_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--for", "deepspeed", "--stage", "1", "--micro-batch", "1", "--optimizer", "none")
    pipeline = generated(capsys, *common, "--pp", "2", "--pipeline", "activation_checkpoint_interval=1")
    assert pipeline["pipeline"] == {"activation_checkpoint_interval": 1, "use_reentrant": False}
    assert "optimizer" not in pipeline
    own = generated(capsys, *common, "--pp", "2", "--pipeline", "schedule=zb-v", "recomputation=full")
    assert own["pipeline"] == {"stages": 2, "schedule": "zb-v", "recomputation": "full"}
    fp32 = ("--stage", "0", "--precision", "fp32", "--pipeline", "schedule=1f1b", "use_reentrant=null")
    clipped = generated(capsys, *common, "--pp", "2", *fp32)
    assert clipped["gradient_clipping"] == 1.0, "npu_plugins counts every stage"
    assert clipped["pipeline"] == {"stages": 2, "schedule": "1f1b"}
    divided = generated(capsys, *common, "--tp", "2", "--tensor-parallel", "vocab_parallel_lm_head=true")
    assert divided["tensor_parallel"] == {"autotp_size": 2, "vocab_parallel_lm_head": True}
    threefold = generated(capsys, *common, "--tp", "2", "--tp-by", "mpu", "--pp", "2", "--world-size", "8")
    assert threefold["train_batch_size"] == 2
    assert "tensor_parallel" not in threefold


@pytest.mark.parametrize("name", [name for name in starting_points() if name != "zero3_nvme"])
def test_a_preset_alone_comes_out_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert generated(capsys, "--preset", name) == load_preset(name)


def test_options_go_over_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    config = generated(
        capsys, "--preset", "docs_zero2", "--zero", "overlap_comm=false", "--fp16", "initial_scale_power=12"
    )
    assert config["zero_optimization"] == {
        **load_preset("docs_zero2")["zero_optimization"],
        "overlap_comm": False,
    }
    assert config["fp16"] == {**load_preset("docs_zero2")["fp16"], "initial_scale_power": 12}


def test_a_section_given_twice_counts_twice(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--preset", "zero2", "--zero", "overlap_comm=true", "--zero", "reduce_bucket_size=2e8")
    zero = generated(capsys, *arguments)["zero_optimization"]
    assert zero["overlap_comm"] is True and zero["reduce_bucket_size"] == 2e8


def test_a_preset_for_hf_in_numbers_for_deepspeed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "--preset",
        "zero2",
        "--for",
        "deepspeed",
        "--micro-batch",
        "2",
        "--optimizer",
        "AdamW",
        "lr=1e-4",
    )
    assert '"auto"' not in json.dumps(generated(capsys, *arguments))


def test_the_parameters_of_another_optimizer_are_not_kept(capsys: pytest.CaptureFixture[str]) -> None:
    config = generated(capsys, "--preset", "zero1_pp", "--optimizer", "AdamW", "weight_decay=0.3")
    assert config["optimizer"]["params"]["lr"] == 1e-4
    assert main(["generate", "--preset", "zero1_pp", "--optimizer", "Lion"]) == 2
    assert "optimizer Lion needs lr" in capsys.readouterr().err


def test_the_missing_path_completes_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    config = generated(capsys, "--preset", "zero3_nvme", "--nvme-path", "/local_nvme")
    assert config["zero_optimization"]["offload_param"]["nvme_path"] == "/local_nvme"


def test_output_goes_to_a_file_and_notes_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ds.json"
    assert main(["generate", "--preset", "zero1_pp", "--output", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ds-config: note: DeepSpeed reads no number of stages from the file")
    assert json.loads(path.read_text(encoding="utf-8")) == load_preset("zero1_pp")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--stage", "1"], "say who reads the file"),
        (["--for", "hf"], "choose 0 (shards nothing)"),
        (["--for", "hf", "--stage", "two"], 'stage is "two"'),
        (["--preset", "zero9"], "no preset is named 'zero9'"),
        (["--preset", "zero2", "--zero", "overlap_comm"], "--zero overlap_comm is no KEY=VALUE"),
        (["--preset", "zero2", "--zero", "a=1", "a=2"], "--zero a is given twice"),
        (["--preset", "zero2", "--zero", "a=1", "--zero", "a=2"], "--zero a is given twice"),
        (["--preset", "zero2", "--optimizer", "SGD", "--optimizer", "Adam"], "--optimizer is given twice"),
        (["--preset", "zero2", "--stage", "2.0"], "stage is 2.0; choose 0"),
        (["--preset", "zero2", "--model", "tiny-llama", "--hidden", "8"], "--model and --hidden both say"),
        (["--preset", "zero2", "--model", "nothing"], "model nothing is neither a directory"),
        (["--preset", "zero2", "--output", "/no/such/folder/x"], "/no/such/folder/x cannot be written"),
        (["--preset", "zero3_nvme"], "needs a folder on the drive"),
    ],
)
def test_refusals_are_one_line(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert reason in err
    assert err.startswith("ds-config: ") and err.count("\n") == 1
