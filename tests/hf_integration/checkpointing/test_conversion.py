"""A Trainer's checkpoint as a whole: told of, verified, and converted to what others go on from."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from npu_plugins.checkpoint import CheckpointError
from npu_plugins.checkpoint.convert import convert
from npu_plugins.checkpoint.describe import describe
from npu_plugins.checkpoint.training import TrainingSource
from npu_plugins.checkpoint.verify import verify
from tests.harness.pool import RankPool
from tests.hf_integration.checkpointing import conversion_cases
from tests.hf_integration.checkpointing.conversion_cases import KEYS, STEP, States
from tests.pipeline.conftest import Ranks, kept


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on CPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "gloo")


@dataclass
class Saved:
    """A checkpoint at tp 2 × pp 2, and what the engine held when it was saved."""

    path: Path
    states: States


@pytest.fixture(scope="module")
def saved(four: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The checkpoint that the tests look at."""
    folder = tmp_path_factory.mktemp("run")
    states, _ = four.run(conversion_cases.save, str(folder), 2, 2)[0]
    return Saved(folder / f"checkpoint-{STEP}", states)


def test_inspect_tells_what_it_is_and_resumes_as(saved: Saved) -> None:
    told = describe(saved.path)
    assert told.kind == "npu_plugins checkpoint with Hugging Face safetensors and training state"
    assert (told.step, told.model) == (STEP, "Qwen2ForCausalLM")
    assert told.layout == {"tp": 2, "pp": 2, "dp": 1, "ep": 1, "world size": 4, "ZeRO stage": 0}
    assert told.optimizer == ["exp_avg", "exp_avg_sq"]
    assert "any other tp × pp × dp and ZeRO stage with --allow_layout_change" in told.resumes
    assert told.details["optimizer's class"] == "AdamW"
    assert verify(saved.path) == []


def cut(file: Path) -> None:
    """Cut a file in half."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    """Change one bit, near the end."""
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "model.safetensors": (flip, "another content than was saved"),
    "config.json": (Path.unlink, "is missing"),
    "trainer_state.json": (cut, "it was cut short or changed"),
    "training_state/index.json": (flip, "another content than was saved"),
    "training_state/rank-00001.safetensors": (cut, "it was cut short or changed"),
    "training_state/rank-00002.safetensors": (Path.unlink, "is missing"),
}


def test_verify_names_each_faulty_file(saved: Saved, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(saved.path, copy)
    for name, (damage, _) in DAMAGES.items():
        damage(copy / name)
    faults = {fault.file: fault.problem for fault in verify(copy)}
    assert faults.keys() == DAMAGES.keys()
    for name, (_, words) in DAMAGES.items():
        assert words in faults[name], name


def test_without_its_manifest_missing_and_other_files_are_found(saved: Saved, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(saved.path, copy, ignore=shutil.ignore_patterns("npu_plugins_manifest.json"))
    assert verify(copy) == []
    files = sorted((copy / "training_state").glob("rank-*.safetensors"))
    shutil.copyfile(files[0], files[1])
    files[2].unlink()
    faults = {fault.file: fault.problem for fault in verify(copy)}
    assert faults.keys() == {f"training_state/{file.name}" for file in files[1:3]}
    assert "as index.json says" in faults[f"training_state/{files[1].name}"]
    assert "is missing; index.json lists it" in faults[f"training_state/{files[2].name}"]


def test_weights_are_the_master_weights(saved: Saved, tmp_path: Path) -> None:
    made = convert(saved.path, tmp_path / "hf", "hf")
    assert made.notes == ["only weights are converted: the optimizer's state stays behind"]
    found, plain = (
        load_file(tmp_path / "hf" / "model.safetensors"),
        load_file(saved.path / "model.safetensors"),
    )
    assert found.keys() == plain.keys()
    for name, weight in found.items():
        assert torch.equal(weight, saved.states[name]["fp32"]), name
        assert torch.equal(weight.bfloat16(), plain[name].bfloat16()), name
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    assert "config.json" in names
    assert not names & {"training_state", "trainer_state.json", "index.json", "training_args.bin"}
    convert(saved.path, tmp_path / "sharded", "sharded", tp=2, pp=2)
    convert(tmp_path / "sharded", tmp_path / "back", "hf")
    again = load_file(tmp_path / "back" / "model.safetensors")
    assert all(torch.equal(again[name], found[name]) for name in found)


def test_the_trainer_goes_on_from_a_universal_checkpoint(four: Ranks, saved: Saved, tmp_path: Path) -> None:
    """As from the one that it was made of: every loss and norm of two more steps is the same number."""
    convert(saved.path, tmp_path / "universal", "universal")
    again = tmp_path / f"checkpoint-{STEP}"
    convert(tmp_path / "universal", again, "training", config=saved.path)
    assert verify(again) == []
    assert describe(again).resumes == describe(saved.path).resumes
    records = [
        four.run(conversion_cases.resume, str(path), str(tmp_path / f"run{number}"))[0]
        for number, path in enumerate((saved.path, again))
    ]
    assert len(records[0]) == 2
    assert records[0] == records[1]
    (tmp_path / "other").mkdir()
    shutil.copyfile(saved.path / "config.json", tmp_path / "other" / "config.json")
    (tmp_path / "other" / "trainer_state.json").write_text('{"global_step": 3}')
    with pytest.raises(CheckpointError, match="is of step 3, but the optimizer's state of step 2"):
        convert(tmp_path / "universal", tmp_path / "wrong", "training", config=tmp_path / "other")
    weights = convert(saved.path, tmp_path / "hf", "hf").path
    for source in (weights, convert(weights, tmp_path / "begin", "universal").path):
        with pytest.raises(CheckpointError, match="holds no optimizer's state by name"):
            convert(source, tmp_path / "none", "training")
    assert not (tmp_path / "wrong").exists()
    assert not (tmp_path / "none").exists()


def test_deepspeed_goes_on_with_master_weights_and_moments(four: Ranks, saved: Saved, tmp_path: Path) -> None:
    made = convert(saved.path, tmp_path / "universal", "universal")
    assert [note.partition(",")[0] for note in made.notes] == ["parameter groups differ in weight_decay"]
    source = TrainingSource(saved.path)
    for name, wanted in saved.states.items():
        found = {"fp32": source.read(name), **source.moments(name)}
        assert all(torch.equal(found[key], wanted[key]) for key in KEYS), name
    for stage in (1, 3):
        for states in four.run(conversion_cases.go_on, str(tmp_path / "universal"), stage):
            assert states.keys() == saved.states.keys()
            for name, each in states.items():
                assert all(torch.equal(each[key], saved.states[name][key]) for key in KEYS), (stage, name)
