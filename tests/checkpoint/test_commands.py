"""`npu-plugins checkpoint`: what it prints, what it returns, and that nothing hostile runs."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from npu_plugins.checkpoint import save_checkpoint
from npu_plugins.checkpoint.files import INDEX_FILE
from npu_plugins.checkpoint.state import Trained, save_training_state
from npu_plugins.cli import main
from tests.checkpoint.test_torch_files import malicious

Captured = pytest.CaptureFixture[str]


def hugging_face(directory: Path) -> Path:
    """A directory of two files and an index, as save_pretrained writes one."""
    directory.mkdir(parents=True)
    one = {"model.embed.weight": torch.zeros(8, 4), "model.layers.0.weight": torch.ones(4, 4)}
    two = {"model.norm.weight": torch.ones(4), "lm_head.weight": torch.zeros(8, 4).bfloat16()}
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate((one, two), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file(tensors, directory / file, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    (directory / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (directory / "config.json").write_text('{"architectures": ["TinyForCausalLM"], "dtype": "float32"}')
    return directory


def zero(directory: Path, ranks: int = 2) -> Path:
    """Files by the names that DeepSpeed gives those of ZeRO stage 2, one parameter and a buffer."""
    directory.mkdir(parents=True)
    (directory.parent / "latest").write_text(directory.name)
    states = {
        "module": {"w": torch.zeros(4, 2), "table": torch.arange(3)},
        "buffer_names": ["table"],
        "param_shapes": [{"w": torch.Size([4, 2])}],
        "shared_params": {},
        "dp_world_size": ranks,
        "mp_world_size": 1,
        "global_steps": 5,
        "ds_version": "0.19.8",
    }
    torch.save(states, directory / "mp_rank_00_model_states.pt")
    from deepspeed.utils.tensor_fragment import fragment_address

    for rank in range(ranks):
        flat = torch.arange(4.0) + 4 * rank
        state = {
            "zero_stage": 2,
            "partition_count": [ranks],
            "single_partition_of_fp32_groups": [flat],
            "param_slice_mappings": [{"w": fragment_address(numel=4, start=0)}],
            "base_optimizer_state": {
                "state": {0: {"exp_avg": flat / 2, "step": 5}},
                "param_groups": [{"lr": 1.0}],
            },
        }
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": state}, directory / name)
    return directory


def run(capsys: Captured, *arguments: Any) -> tuple[int, str, str]:
    """Run the command; returns status, output and errors."""
    capsys.readouterr()  # what a fixture imported may have spoken
    status = main(["checkpoint", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def test_inspecting_a_hugging_face_directory(tmp_path: Path, capsys: Captured) -> None:
    directory = hugging_face(tmp_path / "model")
    status, out, _ = run(capsys, "inspect", directory)
    assert status == 0
    assert out.splitlines()[0] == f"{directory}: Hugging Face safetensors"
    assert "model:      TinyForCausalLM" in out
    assert "parameters: 84 in 4 tensors (52 float32, 32 bfloat16)" in out
    assert "resumes as: nothing: it holds weights alone" in out
    told = json.loads(run(capsys, "inspect", directory, "--json")[1])
    assert (told["kind"], told["parameters"], told["tensors"]) == ("Hugging Face safetensors", 84, 4)
    assert told["dtypes"] == {"float32": 52, "bfloat16": 32}
    assert told["files"] == 4
    assert told["bytes"] == sum(path.stat().st_size for path in directory.iterdir())


def test_inspecting_deepspeeds_files(tmp_path: Path, capsys: Captured) -> None:
    zero(tmp_path / "run" / "global_step5")
    told = json.loads(run(capsys, "inspect", tmp_path / "run", "--json")[1])
    assert told["path"] == str(tmp_path / "run" / "global_step5"), "the tag of `latest` is followed"
    assert told["layout"] == {"tp": 1, "pp": 1, "dp": 2, "ZeRO stage": 2}
    assert (told["step"], told["optimizer"], told["parameters"]) == (5, ["exp_avg"], 11)
    assert told["details"] == {"DeepSpeed version": "0.19.8"}
    assert told["resumes"] == "2 ranks with ZeRO stage 2; convert to universal for others"


def test_inspecting_a_pipelines_files(tmp_path: Path, capsys: Captured) -> None:
    states = {"mp_world_size": 4, "dp_world_size": 2, "global_steps": 7}
    for place in range(4):
        torch.save(states, tmp_path / f"mp_rank_{place:02d}_model_states.pt")
    for layer in (0, 1, 3):
        for rank in range(2):
            torch.save(
                {"w": torch.zeros(2)}, tmp_path / f"layer_{layer:02d}-model_{rank:02d}-model_states.pt"
            )
    told = json.loads(run(capsys, "inspect", tmp_path, "--json")[1])
    assert told["kind"] == "DeepSpeed pipeline"
    assert told["layout"] == {"tp": 2, "pp": 2, "dp": 2}
    assert (told["step"], told["details"]["layers"], told["parameters"]) == (7, 3, 12)
    assert run(capsys, "verify", tmp_path)[0] == 0
    status, _, err = run(capsys, "convert", tmp_path, tmp_path / "out", "--to", "hf")
    assert status == 1
    assert "nothing says which parameter of the whole model is which: DeepSpeed's own engine wrote it" in err
    (tmp_path / "mp_rank_03_model_states.pt").unlink()
    (tmp_path / "layer_01-model_01-model_states.pt").unlink()
    status, out, _ = run(capsys, "verify", tmp_path)
    assert status == 1
    assert "mp_rank_03_model_states.pt is missing; 4 were written" in out
    assert "layer_01-model_01-model_states.pt is missing; other layers have one" in out


def test_inspecting_our_own(tmp_path: Path, capsys: Captured) -> None:
    def write(folder: Path) -> None:
        shutil.copytree(hugging_face(tmp_path / "model"), folder / "weights")

    path = save_checkpoint(tmp_path / "run", 30, write, model="m", zero_stage=1, extra={"loss": 2.5})
    told = json.loads(run(capsys, "inspect", path, "--json")[1])
    assert told["kind"] == "npu_plugins checkpoint with Hugging Face safetensors"
    assert (told["step"], told["parameters"], told["model"]) == (30, 84, "TinyForCausalLM")
    assert told["layout"] == {"tp": 1, "pp": 1, "dp": 1, "ep": 1, "world size": 1, "ZeRO stage": 1}
    assert told["details"] == {"model digest": "m", "loss": 2.5}
    assert run(capsys, "verify", path)[0] == 0
    file = path / "weights" / "model-00002-of-00002.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    status, out, _ = run(capsys, "verify", path)
    assert status == 1
    assert "weights/model-00002-of-00002.safetensors has another content than was saved" in out
    status, _, err = run(capsys, "convert", path, tmp_path / "out", "--to", "universal")
    assert status == 1
    assert "is damaged: weights/model-00002" in err
    status, _, err = run(capsys, "inspect", tmp_path / "run")
    assert status == 1
    assert "is a run with 1 checkpoints; give one of them" in err


def test_adapters_are_no_model(tmp_path: Path, capsys: Captured) -> None:
    """A checkpoint of LoRA: its state is told of and becomes universal, but there is no model to convert."""
    adapters = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(adapters.parameters())
    adapters(torch.ones(1, 3)).sum().backward()
    optimizer.step()

    def write(folder: Path) -> None:
        save_file({"weight": torch.zeros(2, 3)}, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
        (folder / "trainer_state.json").write_text('{"global_step": 1}')
        save_training_state(Trained(adapters, optimizer), folder)

    path = save_checkpoint(tmp_path / "run", 1, write, model="m")
    told = json.loads(run(capsys, "inspect", path, "--json")[1])
    assert told["model"] == "adapters of peft for org/base"
    assert (told["parameters"], told["optimizer"]) == (8, ["exp_avg", "exp_avg_sq"])
    assert run(capsys, "verify", path)[0] == 0
    for to in ("hf", "sharded"):
        status, _, err = run(capsys, "convert", path, tmp_path / to, "--to", to)
        assert status == 1
        assert "holds adapters of peft, not the weights of a model; train with --lora_merge" in err
    assert run(capsys, "convert", path, tmp_path / "universal", "--to", "universal")[0] == 0
    held = torch.load(
        tmp_path / "universal" / "universal" / "zero" / "weight" / "exp_avg.pt", weights_only=True
    )
    assert torch.equal(held["param"], optimizer.state[adapters.weight]["exp_avg"])
    index = path / "training_state" / "index.json"
    for manifest, words in (
        (True, "another content than was saved"),
        (False, "cannot be read, it is cut short"),
    ):
        if not manifest:
            (path / "npu_plugins_manifest.json").unlink()
        index.write_text(index.read_text().replace('"format"', '"former"'))
        status, out, _ = run(capsys, "verify", path)
        assert status == 1
        assert words in out
    assert "cannot be read, it is cut short" in run(capsys, "inspect", path)[2]


def test_verifying_names_each_faulty_file(tmp_path: Path, capsys: Captured) -> None:
    directory = hugging_face(tmp_path / "model")
    status, out, _ = run(capsys, "verify", directory)
    assert (status, "4 files" in out, "all good" in out) == (0, True, True)
    first, second = sorted(directory.glob("*.safetensors"))
    first.write_bytes(first.read_bytes()[:-3])
    save_file({"model.norm.weight": torch.ones(4), "other": torch.ones(1)}, second)
    (directory / "tokenizer.json").write_text("{")
    torch.save({"w": torch.zeros(100)}, directory / "scheduler.pt")
    content = (directory / "scheduler.pt").read_bytes()
    (directory / "scheduler.pt").write_bytes(content[: len(content) // 2])
    status, out, _ = run(capsys, "verify", directory)
    assert status == 1
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == [
        "model-00001-of-00002.safetensors",
        "scheduler.pt",
        "tokenizer.json",
        "model-00002-of-00002.safetensors",
    ]
    assert "is no whole safetensors file" in lines[0]
    assert "is no whole file of torch.save" in lines[1]
    assert "is no JSON" in lines[2]
    assert f"lacks lm_head.weight, which {INDEX_FILE} lists" in lines[3]
    assert lines[-1] == f"{directory}: 4 of its files are faulty"
    second.unlink()
    assert f"{second.name} is missing; {INDEX_FILE} lists it" in run(capsys, "verify", directory)[1]


def test_a_missing_rank_is_named(tmp_path: Path, capsys: Captured) -> None:
    directory = zero(tmp_path / "run" / "global_step5")
    assert run(capsys, "verify", tmp_path / "run")[0] == 0
    (directory / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    status, out, _ = run(capsys, "verify", tmp_path / "run")
    assert status == 1
    assert "zero_pp_rank_1_mp_rank_00_optim_states.pt is missing; 2 ranks wrote such files" in out
    (tmp_path / "run" / "config.json").write_text("{}")
    status, _, err = run(capsys, "convert", tmp_path / "run", tmp_path / "out", "--to", "hf")
    assert status == 1
    assert "1 optimizer files of 2 ranks, rank 1's is missing" in err
    assert not (tmp_path / "out").exists()


def test_converting_says_what_was_left_out(tmp_path: Path, capsys: Captured) -> None:
    zero(tmp_path / "run" / "global_step5")
    (tmp_path / "run" / "config.json").write_text('{"architectures": ["Tiny"], "dtype": "bfloat16"}')
    status, out, _ = run(capsys, "convert", tmp_path / "run", tmp_path / "out", "--to", "hf")
    assert status == 0
    assert out.splitlines()[0] == "note: only weights are converted: the optimizer's state stays behind"
    assert "11 parameters" in out
    held = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(held["w"], torch.arange(8.0).reshape(4, 2))
    assert torch.equal(held["table"], torch.arange(3))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path, capsys: Captured) -> None:
    model = hugging_face(tmp_path / "model")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        status, _, err = run(capsys, "convert", model, tmp_path / "out", "--to", "universal")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert status == 1
    assert "fp32.pt cannot be written: " in err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_without_zero_the_weights_are_the_models_own(tmp_path: Path, capsys: Captured) -> None:
    directory = tmp_path / "run" / "tag"
    directory.mkdir(parents=True)
    weights = {"w": torch.randn(4, 2).bfloat16(), "head": torch.randn(3).bfloat16()}
    states = {
        "module": {**weights, "tied": weights["w"]},
        "shared_params": {"tied": "w"},
        "param_shapes": None,
        "optimizer": {"state": {0: {"exp_avg": torch.zeros(4, 2)}}},
        "dp_world_size": 2,
        "mp_world_size": 1,
    }
    torch.save(states, directory / "mp_rank_00_model_states.pt")
    (directory / "config.json").write_text("{}")
    assert run(capsys, "verify", directory)[0] == 0
    assert json.loads(run(capsys, "inspect", directory, "--json")[1])["layout"]["ZeRO stage"] == 0
    assert run(capsys, "convert", directory, tmp_path / "out", "--to", "hf")[0] == 0
    held = load_file(tmp_path / "out" / "model.safetensors")
    assert held.keys() == weights.keys()
    assert all(torch.equal(held[name], weights[name]) for name in held)
    status, _, err = run(capsys, "convert", directory, tmp_path / "u", "--to", "universal")
    assert status == 1
    assert "by the place of a parameter, not by its name" in err


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            "layer_0_expert_3_mp_rank_00_model_states.pt",
            "keeps experts in files of their own (layer_0_expert_3",
        ),
        ("zero_pp_rank_0_mp_rank_00_model_states.pt", "mixes model states of ZeRO stage 3 and others"),
        ("mp_rank_01_model_states.pt", "was written by 2 tensor-parallel ranks or pipeline stages"),
        (
            "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "has 3 optimizer files of 2 ranks, from two saves",
        ),
    ],
)
def test_what_is_not_whole_in_one_place_is_refused(
    tmp_path: Path, capsys: Captured, extra: str, message: str
) -> None:
    directory = zero(tmp_path / "run" / "global_step5")
    (directory / "config.json").write_text("{}")
    shutil.copyfile(directory / "mp_rank_00_model_states.pt", directory / extra)
    status, _, err = run(capsys, "convert", directory, tmp_path / "out", "--to", "hf")
    assert status == 1
    assert message in err
    assert run(capsys, "verify", directory)[0] == 1
    assert not (tmp_path / "out").exists()


def test_round_robin_gradients_are_refused(tmp_path: Path, capsys: Captured) -> None:
    directory = zero(tmp_path / "run" / "global_step5")
    file = directory / "mp_rank_00_model_states.pt"
    config = {"zero_optimization": {"stage": 2, "round_robin_gradients": True}}
    torch.save({**torch.load(file, weights_only=True), "ds_config": config}, file)
    (directory / "config.json").write_text("{}")
    status, _, err = run(capsys, "convert", directory, tmp_path / "out", "--to", "hf")
    assert status == 1
    assert "was trained with round_robin_gradients" in err


@pytest.mark.parametrize("file", ["mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"])
def test_a_hostile_checkpoint_runs_nothing(tmp_path: Path, capsys: Captured, file: str) -> None:
    directory, mark = zero(tmp_path / "run" / "global_step5"), tmp_path / "it-ran"
    (tmp_path / "run" / "config.json").write_text("{}")
    malicious(directory / file, mark)
    for arguments in (
        ["inspect", tmp_path / "run"],
        ["verify", tmp_path / "run"],
        ["convert", tmp_path / "run", tmp_path / "out", "--to", "hf"],
        ["convert", tmp_path / "run", tmp_path / "out", "--to", "universal"],
    ):
        status, out, err = run(capsys, *arguments)
        assert status == 1, arguments
        assert "holds more than tensors and plain values: it asks for posix.system" in out + err
        assert not mark.exists()
        assert not (tmp_path / "out").exists()


def test_a_tag_that_leads_elsewhere_is_refused(tmp_path: Path, capsys: Captured) -> None:
    hugging_face(tmp_path / "secret")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "latest").write_text("../secret")
    status, _, err = run(capsys, "inspect", tmp_path / "run")
    assert status == 1
    assert "leads out of it" in err


def test_what_is_no_checkpoint(tmp_path: Path, capsys: Captured) -> None:
    assert "is no directory" in run(capsys, "verify", tmp_path / "none")[2]
    (tmp_path / "notes.txt").touch()
    assert "is no checkpoint: it has neither" in run(capsys, "inspect", tmp_path)[2]
