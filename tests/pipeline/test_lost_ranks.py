"""A rank that dies or hangs in the middle of a step: all others name it, and the job ends."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.npu import rank_environment
from tests.harness.outcome import Outcome
from tests.harness.pool import RankPool
from tests.pipeline.lost_rank_cases import lose_a_rank
from tests.simulator.test_failures import holders_of_simulated_memory, shared_memory

TIMEOUT = 5
NODE = f"failures-{os.getpid()}"  # of tests.simulator.test_failures, whose questions are asked here


class Job(NamedTuple):
    """A pipeline of `size` stages that loses a rank."""

    size: int
    backend: str
    schedule: str
    victim: int
    how: str
    evaluate: bool = False


def outcomes(pool: RankPool, *jobs: Job) -> list[list[Outcome]]:
    """Run jobs side by side; return of each what became of the ranks that were not lost."""
    pool.preload("deepspeed")
    env = {"HCCL_EXEC_TIMEOUT": str(TIMEOUT), "NPU_SIM_NODE": NODE}
    with ExitStack() as stack:
        worlds = [
            stack.enter_context(pool.world(job.size, job.backend, group_timeout=TIMEOUT, env=env))
            for job in jobs
        ]
        for job, world in zip(jobs, worlds, strict=True):
            world.grace = TIMEOUT + 4.0
            if job.how == "sleep":
                world.sleepers = frozenset({job.victim})
            world.begin(lose_a_rank, job.backend, job.schedule, job.victim, job.how, job.evaluate)
        found = [world.collect(2 * TIMEOUT + 10.0) for world in worlds]
    for job, ends in zip(jobs, found, strict=True):
        assert ends[job.victim].kind == {"kill": "died", "sleep": "hung"}[job.how]
    return [[end for end in ends if end.rank != job.victim] for job, ends in zip(jobs, found, strict=True)]


def assert_told_on_npus(job: Job, ends: list[Outcome]) -> None:
    """The neighbours name it, unless torch_npu's watchdog is quicker, before which HCCL's error is told."""
    for outcome in ends:
        assert outcome.kind in ("raised", "died"), outcome
        if abs(outcome.rank - job.victim) == 1:
            said = outcome.text + outcome.log
            assert re.search(
                rf"PeerLostError: rank {job.victim} \(stage|EI0002.*rank {job.victim}\b", said
            ), said


@pytest.mark.parametrize(
    ("size", "schedule", "victim", "evaluate"),
    [
        (2, "1f1b", 0, False),  # which keeps the job's store
        (4, "zb-v", 2, False),
        (2, "interleaved", 1, True),
    ],
)
def test_a_rank_that_is_killed(
    rank_pool: RankPool, size: int, schedule: str, victim: int, evaluate: bool
) -> None:
    """Ranks that only wait for one that waits for it name it too."""
    (ends,) = outcomes(rank_pool, Job(size, "gloo", schedule, victim, "kill", evaluate))
    for outcome in ends:
        assert f"PeerLostError: rank {victim} (stage" in outcome.text, outcome.text
        assert "ended in the middle of the job" in outcome.text


@pytest.mark.npu
def test_a_rank_that_hangs(rank_pool: RankPool) -> None:
    """On CPUs and on NPUs, which wait for their limits side by side."""
    before = shared_memory()
    jobs = Job(4, "gloo", "zb-h1", 1, "sleep"), Job(2, "hccl", "1f1b", 0, "sleep")
    on_cpus, on_npus = outcomes(rank_pool, *jobs)
    for outcome in on_cpus:
        assert "PeerLostError: rank 1 (stage 1)" in outcome.text, outcome.text
        assert "hung or was cut off: it did not answer" in outcome.text
    assert_told_on_npus(jobs[1], on_npus)
    assert not holders_of_simulated_memory()
    assert shared_memory() <= before


@pytest.mark.npu
@pytest.mark.parametrize(("size", "schedule", "victim"), [(2, "zb-v", 1), (4, "1f1b", 2)])
def test_a_rank_that_is_killed_on_npus(rank_pool: RankPool, size: int, schedule: str, victim: int) -> None:
    before = shared_memory()
    job = Job(size, "hccl", schedule, victim, "kill")
    (ends,) = outcomes(rank_pool, job)
    assert_told_on_npus(job, ends)
    assert not holders_of_simulated_memory()
    assert shared_memory() <= before


def start_alone(backend: str, directory: Path) -> list[subprocess.Popen[bytes]]:
    """Start a job of two processes that nobody watches; they write to files of their ranks' numbers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    directory.mkdir()
    processes = []
    for rank in range(2):
        env = rank_environment() | dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
        env |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env |= {"NPU_SIM_NODE": NODE, "HCCL_EXEC_TIMEOUT": str(TIMEOUT), "LOCAL_WORLD_SIZE": "2"}
        env["NPU_PLUGINS_REPORTS"] = str(directory)
        command = [
            sys.executable,
            "-m",
            "tests.pipeline.lost_rank_cases",
            backend,
            "zb-v",
            "0",
            "kill",
            "900",
        ]
        with open(directory / str(rank), "w") as log:
            processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
    return processes


@pytest.mark.npu
def test_the_jobs_end(tmp_path: Path) -> None:
    """As real processes with nobody to end them: all end by themselves, none with 0, and leave nothing."""
    before = shared_memory()
    jobs = {backend: start_alone(backend, tmp_path / backend) for backend in ("gloo", "hccl")}
    for backend, processes in jobs.items():
        codes = [process.wait(50) for process in processes]  # not the timeout's 900 s
        told = (tmp_path / backend / "1").read_text()
        assert codes[0] == -9 and codes[1] != 0, told
        assert "rank 0 (stages 0, 3) ended" in told, told
    assert not holders_of_simulated_memory()
    assert shared_memory() <= before
