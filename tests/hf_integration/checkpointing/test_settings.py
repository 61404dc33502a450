"""The Trainer's settings of saving: each does what it did, or is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback

from hf_integration.checkpointing.trainer import CheckpointingTrainer
from hf_integration.errors import TrainingInputError
from hf_integration.npu_trainer import NpuTrainer
from hf_integration.parallel_settings import ParallelSettings
from npu_plugins.checkpoint import Layout, find_faults
from tests.hf_integration.checkpointing.test_trainer import Terminate, after_step
from tests.hf_integration.divided import Run, train

SAVES: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
RUN = Run(steps=4, rows=24, flags=SAVES)


class PlainTrainer(Trainer):
    """transformers' own, as `train` makes it."""

    mesh = None

    def __init__(self, *, weights: None, **keywords: Any) -> None:
        super().__init__(**keywords)


def test_checkpoint_of_plain_trainer_is_gone_on_from(tmp_path: Path) -> None:
    unbroken = train(RUN, tmp_path)
    train(replace(RUN, kind=PlainTrainer, stop_at=2), tmp_path / "run")
    assert not list((tmp_path / "run").glob("*/npu_plugins_manifest.json"))
    resumed = train(replace(RUN, resume=True), tmp_path / "run")
    assert after_step([resumed], 2) == after_step([unbroken], 2)


class Pushing(NpuTrainer):
    """Notes what would be pushed to the hub."""

    pushed: list[tuple[str, list[str]]]

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.args.push_to_hub, self.pushed = True, []  # given to the constructor it would ask the hub

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        self.pushed.append((checkpoint_folder, find_faults(checkpoint_folder)))


def test_checkpoint_is_pushed_once_it_is_whole_and_model_alone_is_saved_alone(tmp_path: Path) -> None:
    run = replace(RUN, kind=Pushing, flags={**SAVES, "save_only_model": True})
    record = train(replace(run, after=lambda trainer: trainer.pushed), tmp_path)
    assert record.after == [(str(tmp_path / f"checkpoint-{step}"), []) for step in (2, 4)]
    assert not list(tmp_path.glob("*/training_state"))
    assert not list(tmp_path.glob("*/rng_state*"))
    with pytest.raises(TrainingInputError, match="save_only_model"):
        train(replace(RUN, resume=True), tmp_path)


BEST: dict[str, Any] = {
    **SAVES,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "learning_rate": 3e-2,
    "load_best_model_at_end": True,
    "save_total_limit": 1,
}
"""With this rate the loss of unseen text rises from the start on: the first evaluated is the best."""


def test_sigterm_leaves_its_checkpoint_whatever_the_limit_and_the_best(tmp_path: Path) -> None:
    """A training that ends with a limit of 1 keeps the best checkpoint and no other."""
    run = replace(RUN, flags=BEST, trainer={"callbacks": [Terminate(4, 0)]})
    assert len(train(run, tmp_path).values("eval_loss")) == 1, "the one due in step 4 is left out"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-4"]


def test_best_model_is_found_where_the_run_has_moved(tmp_path: Path) -> None:
    first = train(replace(RUN, flags={**BEST, "save_total_limit": 2}, steps=9, stop_at=4), tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    evaluated = replace(RUN, flags=BEST, resume=True, steps=5, after=lambda trainer: trainer.evaluate())
    record = train(evaluated, tmp_path / "there")
    assert record.after["eval_loss"] == min(first.values("eval_loss"))


class Damage(TrainerCallback):
    """Flips a bit of the best checkpoint's weights, once the last one is saved."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Flip it."""
        file = Path(state.best_model_checkpoint, "model.safetensors")
        if state.global_step == state.max_steps:
            file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))


def test_damaged_best_model_is_not_loaded(tmp_path: Path) -> None:
    run = replace(RUN, flags=BEST, trainer={"callbacks": [Damage()]})
    with pytest.raises(TrainingInputError, match=r"checkpoint-\d is damaged: model\.safetensors has another"):
        train(run, tmp_path)


def test_saving_on_each_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingInputError, match=r"save_on_each_node is True, .* shared file system"):
        train(replace(RUN, flags={"save_on_each_node": True}), tmp_path)


def test_just_in_time_checkpoints_are_ours(tmp_path: Path) -> None:
    args = replace(RUN, flags={"enable_jit_checkpoint": True, "save_on_sigterm": False})
    found = args.arguments(tmp_path, use_cpu=True)
    assert (found.save_on_sigterm, found.enable_jit_checkpoint) == (True, False)


def test_stage_of_zero_is_that_of_accelerate_s_plugin_whoever_made_it() -> None:
    """Under ``accelerate launch`` the arguments have no DeepSpeed configuration."""
    plugin = SimpleNamespace(deepspeed_config={"zero_optimization": {"stage": 2}})
    trainer: Any = SimpleNamespace(
        parallel=ParallelSettings(),
        is_deepspeed_enabled=True,
        accelerator=SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin)),
        _everyone=lambda: None,
    )
    assert CheckpointingTrainer._layout(trainer) == Layout(zero_stage=2)
