"""A rank that dies or hangs in the middle of a step: all others name it, and the job ends."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.npu import rank_environment
from tests.harness.outcome import Outcome
from tests.harness.pool import RankPool
from tests.pipeline.lost_rank_cases import lose_a_rank
from tests.simulator.test_failures import holders_of_simulated_memory, shared_memory

TIMEOUT = 5
NODE = f"failures-{os.getpid()}"  # of tests.simulator.test_failures, whose questions are asked here


def outcomes(
    pool: RankPool, size: int, backend: str, schedule: str, victim: int, how: str, evaluate: bool = False
) -> list[Outcome]:
    """Let a job of `size` stages lose a rank; return what became of the others."""
    pool.preload("deepspeed")
    env = {"HCCL_EXEC_TIMEOUT": str(TIMEOUT), "NPU_SIM_NODE": NODE}
    with pool.world(size, backend, group_timeout=TIMEOUT, env=env) as world:
        world.grace = TIMEOUT + 1.0 if how == "kill" else 4.0
        # A rank that hangs never ends by itself.
        found = world.outcomes(
            lose_a_rank, backend, schedule, victim, how, evaluate, timeout=2 * TIMEOUT + 10.0
        )
    assert found[victim].kind == {"kill": "died", "sleep": "hung"}[how]
    return [outcome for outcome in found if outcome.rank != victim]


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
    for outcome in outcomes(rank_pool, size, "gloo", schedule, victim, "kill", evaluate):
        assert f"PeerLostError: rank {victim} (stage" in outcome.text, outcome.text
        assert "ended in the middle of the job" in outcome.text


def test_a_rank_that_hangs(rank_pool: RankPool) -> None:
    for outcome in outcomes(rank_pool, 4, "gloo", "zb-h1", 1, "sleep"):
        assert "PeerLostError: rank 1 (stage 1)" in outcome.text, outcome.text
        assert "hung or was cut off: it did not answer" in outcome.text


@pytest.mark.npu
@pytest.mark.parametrize(
    ("size", "schedule", "victim", "how"),
    [(2, "zb-v", 1, "kill"), (4, "1f1b", 2, "kill"), (2, "1f1b", 0, "sleep")],
)
def test_a_rank_that_ends_or_hangs_on_npus(
    rank_pool: RankPool, size: int, schedule: str, victim: int, how: str
) -> None:
    """Its neighbours name it, unless torch_npu's watchdog is quicker, before which HCCL's error is told."""
    before = shared_memory()
    for outcome in outcomes(rank_pool, size, "hccl", schedule, victim, how):
        assert outcome.kind in ("raised", "died"), outcome
        if abs(outcome.rank - victim) == 1:
            told = outcome.text + outcome.log
            assert re.search(rf"PeerLostError: rank {victim} \(stage|EI0002.*rank {victim}\b", told), told
    assert not holders_of_simulated_memory()
    assert shared_memory() <= before


@pytest.mark.parametrize("backend", ["gloo", pytest.param("hccl", marks=pytest.mark.npu)])
def test_the_job_ends(backend: str, tmp_path: Path) -> None:
    """As real processes with nobody to end them: all end by themselves, none with 0, and leave nothing."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    before = shared_memory()
    names = ("RANK", "LOCAL_RANK")
    jobs = []
    for rank in range(2):
        env = rank_environment() | dict.fromkeys(names, str(rank))
        env |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env |= {"NPU_SIM_NODE": NODE, "HCCL_EXEC_TIMEOUT": str(TIMEOUT), "LOCAL_WORLD_SIZE": "2"}
        env["NPU_PLUGINS_REPORTS"] = str(tmp_path)
        command = [sys.executable, "-m", "tests.pipeline.lost_rank_cases", backend, "zb-v", "0", "kill", "60"]
        with open(tmp_path / str(rank), "w") as log:
            jobs.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
    began = time.monotonic()
    codes = [job.wait(50) for job in jobs]
    assert time.monotonic() - began < 50, "not the timeout's 60 s"
    told = (tmp_path / "1").read_text()
    assert codes[0] == -9 and codes[1] != 0, told
    assert "rank 0 (stages 0, 3) ended" in told, told
    assert not holders_of_simulated_memory()
    assert shared_memory() <= before
