"""A rank of a world that ends as the process of a program does, and what a job of such ranks has left."""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tests.harness import Outcome, RankPool, World
from tests.harness.rank import log_path

HCCL_TIMEOUT = 6
SLACK = 10.0
START = 60.0
"""Seconds from a rank's birth to its fault, on a busy machine."""
RINGS = {"TORCH_FR_BUFFER_SIZE": "1000", "TORCH_HCCL_TRACE_BUFFER_SIZE": "1000"}
"""What `import torch` sets in a launched rank; ranks of a pool are born after it."""
NODE = f"failures-{os.getpid()}"  # of tests.simulator.test_failures, whose questions are asked here
BACKENDS = {"npu": "hccl", "cpu": "gloo"}
FAULT_AT = re.compile(r"^fault at ([0-9.]+)", re.MULTILINE)


def be_a_process(fault: str, device: str) -> NoReturn:
    """Run the program on this rank of a world and end as its process would."""
    from npu_plugins.diagnostics import watch_for_hangs
    from tests.diagnostics.faults.training import main

    threading.main_thread().name = "MainThread"  # the harness has another for it
    status = 1
    try:
        watch_for_hangs()
        status = main([fault, "--device", device])
    except BaseException:
        sys.excepthook(*sys.exc_info())
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@dataclass(frozen=True)
class Trial:
    """A job with a fault."""

    fault: str
    device: str = "npu"
    size: int = 3
    environment: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return its name."""
        return f"{self.fault}-{self.device}"


@dataclass(frozen=True)
class Ending:
    """What became of a job."""

    outcomes: list[Outcome]
    said: str
    """All that the ranks wrote."""
    reports: Path
    """Where the hang watch left its report, if it made one."""
    ended: float
    """Seconds since 1970 when all ranks were gone, or later."""

    @property
    def statuses(self) -> list[str]:
        """How each rank ended, in words."""
        return [outcome.kind if outcome.kind != "died" else outcome.text for outcome in self.outcomes]

    def seconds(self) -> float:
        """Return how long after the fault the job was over."""
        found = FAULT_AT.search(self.said)
        assert found is not None, self.said
        return self.ended - float(found[1])


def endings(pool: RankPool, trials: list[Trial], folder: Path) -> dict[Trial, Ending]:
    """Run jobs side by side, to their ends."""
    found = {}
    with ExitStack() as stack:
        worlds = [(trial, stack.enter_context(_world(pool, trial, folder))) for trial in trials]
        for trial, world in worlds:
            world.begin(be_a_process, trial.fault, trial.device)
        for trial, world in worlds:
            world.grace = HCCL_TIMEOUT + SLACK
            outcomes = world.collect(START)
            ended = time.time()
            found[trial] = Ending(outcomes, _logs(world), reports_of(trial, folder), ended)
    return found


def _logs(world: World) -> str:
    """Return all that the ranks wrote; their outcomes have only the ends of it."""
    logs = [log_path(world.spec.directory, rank) for rank in range(world.size)]
    return "\n".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)


def reports_of(trial: Trial, folder: Path) -> Path:
    """Return where a job's reports go."""
    return folder / str(trial)


def _world(pool: RankPool, trial: Trial, folder: Path) -> AbstractContextManager[World]:
    env = {
        **RINGS,
        "HCCL_TIMEOUT": str(HCCL_TIMEOUT),
        "HCCL_EXEC_TIMEOUT": str(HCCL_TIMEOUT + 60),
        "NPU_PLUGINS_REPORTS": str(reports_of(trial, folder)),
        "NPU_SIM_NODE": NODE,
        **dict(trial.environment),
    }
    return pool.world(trial.size, BACKENDS[trial.device], env=env, group_timeout=HCCL_TIMEOUT + 90.0)
