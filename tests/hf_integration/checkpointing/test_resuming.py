"""Which checkpoint a run goes on from, and what it says of those that do not do."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from ds_configs.parallel import ParallelConfig
from hf_integration.checkpointing.resuming import Job, find_checkpoint, identity
from hf_integration.errors import TrainingInputError
from npu_plugins.checkpoint import Layout, save_checkpoint
from tests.checkpoint.test_torch_files import malicious

CONFIG = AutoConfig.for_model("llama", vocab_size=64, hidden_size=32)


def write(folder: Path, state: bool = True) -> None:
    """Write files of the names that matter."""
    CONFIG.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(bytes(1000))
    (folder / "trainer_state.json").write_text("{}", encoding="utf-8")
    if state:
        (folder / "training_state").mkdir()
        (folder / "training_state" / "index.json").write_text("{}", encoding="utf-8")


def save(run: Path, step: int, state: bool = True) -> Path:
    """Save a checkpoint of one process."""
    return save_checkpoint(run, step, lambda folder: write(folder, state), model=identity(CONFIG))


def save_plain(run: Path, step: int) -> Path:
    """Save as plain Trainer does: without a manifest."""
    path = run / f"checkpoint-{step}"
    path.mkdir(parents=True)
    write(path, state=False)
    return path


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """The run that saves into tmp_path, at one process."""
    return Job(tmp_path, None, Layout(), CONFIG, divides=False, other_layout=False)


def refusal(asked: Any, job: Job) -> str:
    """Return the sentence that it is refused with."""
    with pytest.raises(TrainingInputError) as told:
        find_checkpoint(asked, job)
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize("asked", [None, False, ""])
def test_nothing_asked_is_nothing_found(asked: Any, job: Job) -> None:
    save(job.directory, 1)
    assert find_checkpoint(asked, job) is None


@pytest.mark.parametrize("asked", [True, "true", "True"])
def test_newest_is_the_one_of_the_last_step(asked: Any, job: Job) -> None:
    for step in (2, 10, 9):
        save(job.directory, step)
    assert find_checkpoint(asked, job) == job.directory / "checkpoint-10"


def test_damaged_newest_is_named_and_passed_over(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    good, damaged = save(job.directory, 1), save(job.directory, 2)
    content = bytearray((damaged / "model.safetensors").read_bytes())
    content[500] ^= 1
    (damaged / "model.safetensors").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert find_checkpoint(True, job) == good
    assert "checkpoint-2 is passed over: model.safetensors has another content" in caplog.text


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("model.safetensors", "model.safetensors is missing"),
        ("training_state/index.json", "training_state/index.json is missing"),
        ("npu_plugins_manifest.json", "npu_plugins_manifest.json"),
    ],
)
def test_named_checkpoint_without_a_file_is_refused(job: Job, file: str, told: str) -> None:
    path = save(job.directory, 1)
    (path / file).unlink()
    sentence = refusal(path, job)
    assert f"{path} is damaged: " in sentence
    assert told in sentence
    assert "--resume_from_checkpoint alone" in sentence


def test_cut_short_file_is_named_with_its_sizes(job: Job) -> None:
    path = save(job.directory, 1)
    (path / "model.safetensors").write_bytes(bytes(10))
    assert "model.safetensors has 10 bytes, not 1000" in refusal(str(path), job)


def test_run_without_a_good_checkpoint_says_how_many_it_looked_at(job: Job) -> None:
    assert "there is none in it" in refusal(True, job)
    (save(job.directory, 1) / "model.safetensors").unlink()
    (save(job.directory, 2) / "model.safetensors").unlink()
    assert "none of the 2 checkpoints in it is good" in refusal(True, job)


def test_what_is_no_directory_is_refused(job: Job) -> None:
    assert "is no directory that all ranks see" in refusal(job.directory / "checkpoint-7", job)


def test_other_model_is_refused_with_what_differs(job: Job) -> None:
    path = save(job.directory, 1)
    other = AutoConfig.for_model("llama", vocab_size=128, hidden_size=32, num_hidden_layers=2)
    sentence = refusal(path, replace(job, config=other))
    assert "vocab_size is 64 there and 128 here" in sentence
    assert "num_hidden_layers is 32 there and 2 here" in sentence
    assert "another model" in refusal(path, replace(job, config="Regression"))


def test_settings_of_training_make_no_other_model(job: Job) -> None:
    path = save(job.directory, 1)
    same = AutoConfig.for_model(
        "llama", vocab_size=64, hidden_size=32, pad_token_id=3, attention_dropout=0.1, use_cache=False
    )
    assert find_checkpoint(path, replace(job, config=same)) == path


@pytest.mark.parametrize(
    "layout",
    [Layout(each) for each in (ParallelConfig(tp=2), ParallelConfig(pp=2), ParallelConfig(dp=2))]
    + [Layout(zero_stage=1)],
    ids=str,
)
def test_other_layout_needs_the_flag(job: Job, layout: Layout) -> None:
    path = save(job.directory, 1)
    sentence = refusal(path, replace(job, layout=layout))
    assert f"was saved at {Layout()}, but this run has {layout}" in sentence
    assert "--allow_layout_change" in sentence
    assert find_checkpoint(path, replace(job, layout=layout, other_layout=True)) == path


def test_weights_alone_are_nothing_to_go_on_with(job: Job) -> None:
    assert "--save_only_model" in refusal(save(job.directory, 1, state=False), job)


def test_checkpoint_of_plain_trainer_does_for_an_undivided_model(job: Job) -> None:
    path = save_plain(job.directory, 3)
    assert find_checkpoint(True, job) == path
    assert find_checkpoint(path, job) == path
    assert "no checkpoint of npu_plugins" in refusal(path, replace(job, divides=True))
    (path / "trainer_state.json").write_text("{", encoding="utf-8")
    assert "trainer_state.json cannot be read" in refusal(path, job)
    (path / "trainer_state.json").unlink()
    assert "trainer_state.json is missing" in refusal(path, job)


def test_files_of_deepspeed_are_read_through_before_it_unpickles_them(job: Job, tmp_path: Path) -> None:
    path = save_plain(job.directory, 3)
    file, mark = path / "global_step3" / "mp_rank_00_model_states.pt", tmp_path / "it-ran"
    file.parent.mkdir()
    torch.save({"module": {"w": torch.zeros(2)}}, file)
    (path / "latest").write_text("global_step3", encoding="utf-8")
    assert find_checkpoint(path, job) == path
    (path / "latest").write_text("../elsewhere", encoding="utf-8")
    assert "latest names '../elsewhere', which is none of global_step3" in refusal(path, job)
    (path / "latest").write_text("global_step3", encoding="utf-8")
    malicious(file, mark)
    assert "global_step3/mp_rank_00_model_states.pt holds more than tensors and plain" in refusal(path, job)
    assert not mark.exists()
