"""A Trainer's checkpoints: a run that goes on from one is the run that never stopped, bit for bit."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerCallback

from npu_plugins.checkpoint import find_faults
from tests.harness.pool import RankPool
from tests.hf_integration.divided import Record, Run, model_config, train, train_on_rank
from tests.pipeline.conftest import Ranks, kept

STEPS = 7
SAVES: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}


@pytest.fixture(scope="module")
def four(rank_pool: RankPool) -> Iterator[Ranks]:
    """Four ranks on simulated NPUs."""
    rank_pool.preload("hf_integration.npu_trainer")
    yield from kept(rank_pool, 4, "hccl")


def forgetful_model() -> Any:
    """Return a model with dropout, of which every mask hangs on the generators' states."""
    config = model_config("gpt2", layers=2)
    torch.manual_seed(7)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.2
    return AutoModelForCausalLM.from_config(config)


def a_run(**changes: Any) -> Run:
    """Return a run with dropout and three steps an epoch, which saves after every other one."""
    run = Run("gpt2", steps=STEPS, rows=24, flags=SAVES, trainer={"model": forgetful_model()})
    return replace(run, **changes)


def after_step(records: list[Record], step: int) -> list[tuple[float, float]]:
    """Return loss and gradient norm of all later steps."""
    entries = [entry for entry in records[0].log if "loss" in entry and entry["step"] > step]
    return [(entry["loss"], entry["grad_norm"]) for entry in entries]


class Terminate(TrainerCallback):
    """Sends SIGTERM to one rank, while it trains a step."""

    def __init__(self, step: int, rank: int) -> None:
        self.step, self.rank = step, rank

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Send it, before the step."""
        if state.global_step == self.step - 1 and args.process_index == self.rank:
            signal.raise_signal(signal.SIGTERM)


def interrupted_at(trainer: Any) -> Path | None:
    """Return what the trainer says of it."""
    return trainer.interrupted_at


def terminated(run: Run, step: int, rank: int) -> Run:
    """Return the run with SIGTERM in a step."""
    with_signal = {**run.trainer, "callbacks": [Terminate(step, rank)]}
    return replace(run, trainer=with_signal, after=interrupted_at)


@pytest.mark.parametrize("step", [5, 6], ids=["within an epoch", "between two"])
def test_single_process_goes_on_exactly_after_sigterm(tmp_path: Path, step: int) -> None:
    unbroken = train(a_run(), tmp_path / "unbroken")
    stopped = train(terminated(a_run(), step, 0), tmp_path / "run")
    assert stopped.after == tmp_path / "run" / f"checkpoint-{step}"
    assert len(stopped.values("loss")) == step
    resumed = train(a_run(resume=True, after=interrupted_at), tmp_path / "run")
    assert resumed.after is None
    assert after_step([resumed], 0) == after_step([unbroken], 0)


@pytest.mark.npu
@pytest.mark.parametrize("layout", [(2, 2, 1), (1, 1, 4)], ids=str)
def test_ranks_agree_on_the_step_although_one_alone_was_signalled(
    four: Ranks, layout: Any, tmp_path: Path
) -> None:
    run = a_run().at(*layout)
    unbroken = four.run(train_on_rank, run, tmp_path / "unbroken", "hccl", timeout=200)
    stopped = four.run(train_on_rank, terminated(run, 5, rank=2), tmp_path / "run", "hccl", timeout=200)
    assert [record.after for record in stopped] == [tmp_path / "run" / "checkpoint-5"] * 4
    resumed = four.run(train_on_rank, replace(run, resume=True), tmp_path / "run", "hccl", timeout=200)
    assert after_step(resumed, 0) == after_step(unbroken, 0)


def test_limit_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    """With this rate the loss of unseen text rises from the start on: the first is the best."""
    flags = {
        **SAVES,
        "save_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "learning_rate": 3e-2,
        "load_best_model_at_end": True,
        "save_total_limit": 2,
    }
    run = Run(steps=8, flags=flags, after=lambda trainer: trainer.evaluate()["eval_loss"])
    record = train(run, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*")) == ["checkpoint-2", "checkpoint-8"]
    assert record.values("eval_loss")[0] == min(record.values("eval_loss")) == record.after


def refused(run: Run, folder: Path, backend: str, full_rank: int) -> str:
    """Train on a rank, of which one can write no more in step 4; return what it says."""
    from hf_integration.npu_trainer import NpuTrainer
    from npu_plugins.checkpoint import CheckpointError

    class Filling(NpuTrainer):
        """Lets the files of a process grow no further while it saves, as a full disk does."""

        def _save_checkpoint(self, *args: Any) -> None:
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            if self.args.process_index == full_rank and self.state.global_step == 4:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
            try:
                super()._save_checkpoint(*args)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    try:
        train_on_rank(replace(run, kind=Filling), folder, backend)
    except CheckpointError as error:
        return str(error)
    return "not refused"


def check_full(told: str, folder: Path) -> None:
    """Check the sentence about a full disk, and that the checkpoint of step 2 is what there is."""
    assert "File too large" in told, told
    assert "make room, or lower save_total_limit" in told
    assert "\n" not in told
    assert [path.name for path in folder.iterdir()] == ["checkpoint-2"]
    assert find_faults(folder / "checkpoint-2") == []


@pytest.mark.npu
def test_full_disk_of_one_rank_ends_all_and_leaves_the_last_checkpoint(four: Ranks, tmp_path: Path) -> None:
    told = four.run(refused, a_run().at(2, 2, 1), tmp_path, "hccl", 3, timeout=200)
    assert len(set(told)) == 1
    assert told[0].startswith(f"checkpoint-4 was not saved in {tmp_path}: rank 3: ")
    check_full(told[0], tmp_path)


def test_full_disk_leaves_the_last_checkpoint_of_a_single_process(tmp_path: Path) -> None:
    check_full(refused(a_run(), tmp_path, "hccl", 0), tmp_path)
    resumed = train(a_run(resume=True), tmp_path)
    assert len(resumed.values("loss")) == STEPS
