"""What ranks run in test_lost_ranks.py; as a program, one rank of a job that loses one."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from tests.pipeline.models import Case
from tests.pipeline.running import make_engine


class Ending(nn.Module):
    """Kills its process, or sleeps, in the middle of the second step."""

    def __init__(self, how: str, calls: int) -> None:
        super().__init__()
        self.how, self.left = how, calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left == 0 and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.left == 0:
            time.sleep(1000)
        return x


def lose_a_rank(backend: str, schedule: str, victim: int, how: str, evaluate: bool = False) -> None:
    """Train, or evaluate, until a rank of the pipeline ends or hangs."""
    stages = dist.get_world_size()
    case = Case(schedule, micro_batches=2 * stages, blocks=2 * stages)
    engine = make_engine(case, backend, stages)
    if dist.get_rank() == victim:
        first = engine.module.own_stages[0]
        engine.module.stage_funcs[first].insert(0, Ending(how, 3 * stages))
    run = engine.eval_batch if evaluate else engine.train_batch
    for step in range(3):
        run(case.batches(step))
    raise AssertionError("nobody noticed")


if __name__ == "__main__":
    backend, schedule, victim, how, seconds = sys.argv[1:]
    import deepspeed

    deepspeed.init_distributed(backend, timeout=timedelta(seconds=float(seconds)))
    lose_a_rank(backend, schedule, int(victim), how)
