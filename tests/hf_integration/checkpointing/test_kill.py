"""`kill -9` while a Trainer saves: whenever it comes, the next start finds a good checkpoint and goes on."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from tests.harness.pool import RankPool, World
from tests.hf_integration.divided import Run, train_on_rank

TURNS = 20


def train_until_killed(folder: Path, saving: Path) -> None:
    """Go on from the newest good checkpoint, which must be the last that was complete, saving every step."""
    from hf_integration.npu_trainer import NpuTrainer
    from npu_plugins.checkpoint import latest_good

    done = folder.with_name("done")
    good, last = latest_good(folder), int(done.read_text()) if done.exists() else 0
    found = 0 if good is None else good.manifest.step
    assert found >= last, f"checkpoint {last} was complete, but {found} is the last good one"

    class Marking(NpuTrainer):
        """Says when it saves for the first time."""

        def _save_checkpoint(self, *args: Any) -> None:
            saving.touch()
            super()._save_checkpoint(*args)

    class Note(TrainerCallback):
        """Notes which checkpoints are complete, and that training has gone on."""

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert state.global_step > found
            done.with_suffix(".new").write_text(str(state.global_step))
            done.with_suffix(".new").rename(done)

    flags = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    run = Run(
        steps=100000,
        micro_batches=1,
        flags=flags,
        kind=Marking,
        trainer={"callbacks": [Note()]},
        resume=None if good is None else True,
    )
    train_on_rank(run, folder, "gloo")


def kill_while_saving(world: World, saving: Path, seconds: float) -> None:
    """Wait until the rank saves, and kill it after a time."""
    deadline = time.monotonic() + 60
    while not saving.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(seconds)
    world.signal(signal.SIGKILL, 0)


def test_every_restart_finds_a_good_checkpoint_and_goes_on(rank_pool: RankPool, tmp_path: Path) -> None:
    chance = random.Random(20261130)
    half_way = 0
    rank_pool.preload("hf_integration.npu_trainer")
    with rank_pool.world(1, "gloo") as world:
        world.grace = 0.1
        for turn in range(TURNS):
            saving = tmp_path / f"saving-{turn}"
            killer = threading.Thread(target=kill_while_saving, args=(world, saving, chance.uniform(0, 0.15)))
            killer.start()
            (outcome,) = world.outcomes(train_until_killed, tmp_path / "run", saving)
            killer.join()
            assert outcome.kind == "died", outcome.text
            assert saving.exists(), outcome.text
            half_way += any((tmp_path / "run").glob(".*"))
            world.restart()
    assert half_way >= 3, f"of {TURNS} kills, {half_way} were in the middle of a save"
    assert int((tmp_path / "done").read_text()) >= 3, "some checkpoints were completed"
