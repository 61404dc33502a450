"""Whole runs of the training program on the CPU."""

from __future__ import annotations

import math
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_integration.train import main
from hf_integration.trainer import CausalLMTrainer
from tests.hf_integration.runs import SMALL, entries, logged

FAST = ["--learning_rate", "3e-3", "--sample_tokens", "8", "--logging_steps", "5", "--report_to", "none"]


def saved_model_loss(folder: Path, dtype: torch.dtype) -> float:
    """Return the loss of the model saved in ``folder`` on a fixed text, loaded as any user would."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=dtype).eval()
    text = "import os\nimport sys\n\n\ndef main():\n    return None\n"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return model(input_ids=ids, labels=ids).loss.item()


@pytest.fixture(scope="module")
def cpu_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on the CPU; returns its output folder."""
    folder = tmp_path_factory.mktemp("run")
    argv = [*SMALL, *FAST, "--use_cpu", "--max_steps", "22", "--output_dir", str(folder)]
    assert main(argv) == 0
    return folder


def test_log_holds_falling_losses_speed_and_perplexity(cpu_run: Path) -> None:
    log = entries(cpu_run)
    losses = {entry["step"]: entry["nats_per_byte"] for entry in log if "loss" in entry}
    assert sorted(losses) == [1, 5, 10, 15, 20, 22]
    assert 5.3 < losses[1] < 5.9
    assert losses[22] < losses[1] - 1.5
    assert all(entry["cpu_tokens_per_s"] > 0 for entry in log if "loss" in entry and entry["step"] > 1)
    (evaluated,) = (entry for entry in log if "eval_loss" in entry)
    assert evaluated["eval_perplexity"] == pytest.approx(math.exp(evaluated["eval_loss"]))


def test_plot_and_model_are_left_behind(cpu_run: Path) -> None:
    assert (cpu_run / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert saved_model_loss(cpu_run, torch.float32) < 4.5


def test_saved_model_evaluates_to_the_loss_of_the_run(cpu_run: Path, tmp_path: Path) -> None:
    argv = ["--model_name_or_path", str(cpu_run / "model"), "--block_size", "32", "--stdlib_bytes", "20000"]
    argv += ["--max_eval_blocks", "8", "--do_train", "false", "--use_cpu", "--sample_tokens", "0"]
    assert main([*argv, "--output_dir", str(tmp_path)]) == 0
    assert logged(tmp_path, "eval_loss") == pytest.approx(logged(cpu_run, "eval_loss"), rel=1e-6)
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "loss.png").exists()


def test_same_seed_same_losses(cpu_run: Path, tmp_path: Path) -> None:
    argv = [*SMALL, *FAST, "--use_cpu", "--max_steps", "22", "--output_dir", str(tmp_path)]
    assert main(argv) == 0
    assert logged(tmp_path, "loss") == logged(cpu_run, "loss")


def test_report_names_device_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*SMALL, *FAST, "--use_cpu", "--max_steps", "2", "--output_dir", str(tmp_path)]
    assert main(argv) == 0
    report = capsys.readouterr().out
    assert "device        cpu (host), 1 rank(s)" in report
    assert f"model         {tmp_path / 'model'}" in report
    assert f"plot          {tmp_path / 'loss.png'}" in report
    assert "  | def " in report


def test_resumed_run_ends_as_the_uninterrupted_one(cpu_run: Path, tmp_path: Path) -> None:
    argv = [*SMALL, *FAST, "--use_cpu", "--max_steps", "22", "--output_dir", str(tmp_path)]
    assert main([*argv, "--save_strategy", "steps", "--save_steps", "10", "--save_total_limit", "3"]) == 0
    shutil.rmtree(tmp_path / "model")
    checkpoint = str(tmp_path / "checkpoint-10")
    assert main([*argv, "--resume_from_checkpoint", checkpoint]) == 0
    steps = [entry["step"] for entry in entries(tmp_path) if "loss" in entry]
    assert steps == [1, 5, 10, 15, 20, 22, 15, 20, 22]  # the log goes on where the first run's ended
    assert logged(tmp_path, "loss")[-3:] == logged(cpu_run, "loss")[-3:]
    assert saved_model_loss(tmp_path, torch.float32) == saved_model_loss(cpu_run, torch.float32)


def test_sigterm_saves_and_exits_0_and_the_run_goes_on_from_there(
    cpu_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal comes in step 12, two steps after an entry of the log and three before the next."""
    step = CausalLMTrainer.training_step

    def signalled(self: CausalLMTrainer, *args: Any) -> torch.Tensor:
        if self.state.global_step == 11:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *args)

    argv = [*SMALL, *FAST, "--use_cpu", "--max_steps", "22", "--output_dir", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(CausalLMTrainer, "training_step", signalled)
        assert main(argv) == 0
    checkpoint = tmp_path / "checkpoint-12"
    assert f"SIGTERM after step 12 of 22, which {checkpoint} holds" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
    AutoModelForCausalLM.from_pretrained(checkpoint)
    assert main([*argv, "--resume_from_checkpoint"]) == 0
    assert logged(tmp_path, "loss") == logged(cpu_run, "loss")
    assert logged(tmp_path, "eval_loss") == logged(cpu_run, "eval_loss")


def test_full_disk_while_saving_exits_1_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = CausalLMTrainer._save_checkpoint

    def out_of_room(self: CausalLMTrainer, *args: Any) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000 if self.state.global_step == 4 else soft, hard))
        try:
            save(self, *args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    monkeypatch.setattr(CausalLMTrainer, "_save_checkpoint", out_of_room)
    argv = [*SMALL, *FAST, "--use_cpu", "--max_steps", "6", "--output_dir", str(tmp_path)]
    assert main([*argv, "--save_strategy", "steps", "--save_steps", "2"]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"train.py: checkpoint-4 was not saved in {tmp_path}: ")
    assert told.endswith("make room, or lower save_total_limit")
    assert [path.name for path in tmp_path.glob("*checkpoint*")] == ["checkpoint-2"]
