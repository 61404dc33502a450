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


def train_until_killed(folder: Path, marks: Path) -> None:
    """Go on from the newest good checkpoint, which must be the last that was complete, saving every step."""
    from hf_integration.npu_trainer import NpuTrainer
    from npu_plugins.checkpoint import latest_good

    done = folder.with_name("done")
    good, last = latest_good(folder), int(done.read_text()) if done.exists() else 0
    found = 0 if good is None else good.manifest.step
    assert found >= last, f"checkpoint {last} was complete, but {found} is the last good one"

    def write(file: Path, text: str) -> None:
        file.with_suffix(".new").write_text(text)
        file.with_suffix(".new").rename(file)

    class Marking(NpuTrainer):
        """Says when its first, second, … save begins, and how long the last one took."""

        saves = 0

        def _save_checkpoint(self, *args: Any) -> None:
            self.saves, began = self.saves + 1, time.monotonic()
            write(marks / str(self.saves), "")
            super()._save_checkpoint(*args)
            write(folder.with_name("seconds"), str(time.monotonic() - began))

    class Note(TrainerCallback):
        """Notes which checkpoints are complete, and that training has gone on."""

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert state.global_step > found
            write(done, str(state.global_step))

    run = Run(
        steps=100000,
        micro_batches=1,
        flags={"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2},
        kind=Marking,
        trainer={"callbacks": [Note()]},
        resume=None if good is None else True,
    )
    train_on_rank(run, folder, "gloo")


def kill_while_saving(world: World, save: Path, seconds: Path, part: float) -> None:
    """Wait until a save begins, and kill the rank after a part of the time that one takes."""
    deadline = time.monotonic() + 60
    while not save.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(part * float(seconds.read_text()) if seconds.exists() else 0)
    world.signal(signal.SIGKILL, 0)


def test_every_restart_finds_a_good_checkpoint_and_goes_on(rank_pool: RankPool, tmp_path: Path) -> None:
    chance = random.Random(20261130)
    half_way = 0
    rank_pool.preload("hf_integration.npu_trainer")
    with rank_pool.world(1, "gloo") as world:
        world.grace = 0.1
        for turn in range(TURNS):
            marks = tmp_path / f"turn-{turn}"
            marks.mkdir()
            # The first turn completes some, so that it is known how long one takes.
            save = marks / str(3 if turn == 0 else chance.randint(1, 2))
            arguments = (world, save, tmp_path / "seconds", chance.uniform(0, 1.2))
            killer = threading.Thread(target=kill_while_saving, args=arguments)
            killer.start()
            (outcome,) = world.outcomes(train_until_killed, tmp_path / "run", marks)
            killer.join()
            assert outcome.kind == "died", outcome.text
            assert save.exists(), outcome.text
            half_way += any((tmp_path / "run").glob(".*"))
            world.restart()
    assert half_way >= 3, f"of {TURNS} kills, {half_way} were in the middle of a save"
    assert int((tmp_path / "done").read_text()) >= 3, "some checkpoints were completed"
