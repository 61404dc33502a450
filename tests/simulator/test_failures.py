"""Ranks that die, stop or never come: their peers end with HCCL's error and nothing is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.harness import Outcome, RankPool

pytestmark = pytest.mark.npu

ROUNDS = int(os.environ.get("FAILURE_ROUNDS", "3"))  # benchmarks use 20
EXEC_TIMEOUT = 6  # seconds a collective may wait
SLACK = 10.0  # seconds a peer may take to report, on a busy machine
NODE = f"failures-{os.getpid()}"


def reduce_for_ever(victim: int, mebibytes: int, seconds: float) -> None:
    """All-reduces without end; `seconds` after the first, the victim is killed in the middle of one."""
    tensor = torch.ones(mebibytes << 18, device="npu")
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    torch.npu.synchronize()
    if dist.get_rank() == victim:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        torch.npu.synchronize()


def reduce_once(absent: int, action: str) -> None:
    """One good all-reduce, then one for which rank `absent` does not come."""
    tensor = torch.ones(1000, device="npu")
    dist.all_reduce(tensor)
    torch.npu.synchronize()
    if dist.get_rank() == absent:
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)
    dist.all_reduce(tensor)
    torch.npu.synchronize()


def told(outcome: Outcome) -> str:
    """Everything a rank said: its exception and what it logged before it ended."""
    return outcome.text + outcome.log


def shared_memory() -> set[str]:
    """Names below /dev/shm and abstract sockets of this test's simulated machine.

    Semaphores and storages of multiprocessing are left out: any Python program on this machine makes some.
    """
    files = {path.name for path in Path("/dev/shm").iterdir()}
    names = {name for name in files if not name.startswith(("sem.mp-", "torch_"))}
    sockets = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if NODE in line}
    return names | sockets


def holders_of_simulated_memory() -> list[str]:
    """Processes that still have an NPU of this test's simulated machine open."""
    found = []
    for process in psutil.process_iter():
        try:
            links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{process.pid}/fd")]
        except OSError:
            continue  # gone by now, or another user's
        if any(f"npu-sim:{NODE}" in link for link in links):
            found.append(f"{process.pid} {process.name()}")
    return found


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_rank_killed_in_the_middle_of_a_collective(round_number: int, rank_pool: RankPool) -> None:
    before = shared_memory()
    env = {"HCCL_EXEC_TIMEOUT": str(EXEC_TIMEOUT), "NPU_SIM_NODE": NODE}
    victim = round_number % 3
    with rank_pool.world(3, env=env) as world:
        world.grace = EXEC_TIMEOUT + SLACK
        pids = list(rank_pool.pids[world.key])
        delay = 0.05 + 0.007 * round_number  # an all-reduce takes some milliseconds: another point each round
        outcomes = world.outcomes(reduce_for_ever, victim, 8, delay, timeout=EXEC_TIMEOUT + 2 * SLACK)
    assert outcomes[victim].kind == "died" and "SIGKILL" in outcomes[victim].text
    for outcome in outcomes:
        if outcome.rank != victim:
            assert outcome.kind in ("raised", "died"), told(outcome)
            assert "EI0002" in told(outcome), told(outcome)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not holders_of_simulated_memory()
    assert shared_memory() <= before


@pytest.mark.parametrize("action", ["kill", "sleep"])
def test_peers_of_an_absent_rank_name_it(action: str, rank_pool: RankPool) -> None:
    env = {"HCCL_EXEC_TIMEOUT": str(EXEC_TIMEOUT), "NPU_SIM_NODE": NODE}
    with rank_pool.world(3, env=env) as world:
        world.grace = EXEC_TIMEOUT + SLACK
        world.sleepers = frozenset({1}) if action == "sleep" else frozenset()
        start = time.monotonic()
        outcomes = world.outcomes(reduce_once, 1, action, timeout=EXEC_TIMEOUT + SLACK)
        elapsed = time.monotonic() - start
    assert outcomes[1].kind == ("died" if action == "kill" else "hung")
    for rank in (0, 2):
        assert outcomes[rank].kind in ("raised", "died"), told(outcomes[rank])
        assert "EI0002" in told(outcomes[rank]) and "rank 1" in told(outcomes[rank])
    if action == "kill":
        assert elapsed < EXEC_TIMEOUT + SLACK / 2, "a dead rank is noticed before the timeout"


def test_a_rank_that_never_joins_ends_the_connection_attempt(rank_pool: RankPool) -> None:
    def join() -> None:
        if dist.get_rank() == 1:
            time.sleep(1000)
        dist.all_reduce(torch.ones(1, device="npu"))
        torch.npu.synchronize()

    with rank_pool.world(2, env={"HCCL_CONNECT_TIMEOUT": "3", "NPU_SIM_NODE": NODE}) as world:
        world.sleepers = frozenset({1})
        outcomes = world.outcomes(join, timeout=3 + SLACK)
    assert outcomes[0].kind in ("raised", "died"), told(outcomes[0])
    assert "EI0006" in told(outcomes[0]), told(outcomes[0])


def test_ranks_that_disagree_are_told_so(rank_pool: RankPool) -> None:
    """On a card this hangs or corrupts; the simulator sees both sides."""

    def disagree() -> None:
        tensor = torch.ones(4 if dist.get_rank() == 0 else 5, device="npu")
        dist.all_reduce(tensor)
        torch.npu.synchronize()

    with rank_pool.world(2, env={"HCCL_EXEC_TIMEOUT": str(EXEC_TIMEOUT)}) as world:
        world.grace = EXEC_TIMEOUT + SLACK
        outcomes = world.outcomes(disagree)
    assert all(outcome.kind in ("raised", "died") for outcome in outcomes)
    assert "EI0005" in "".join(map(told, outcomes))


def test_more_ranks_than_npus_is_refused(rank_pool: RankPool) -> None:
    def take_the_ninth() -> None:
        torch.npu.set_device(8)

    with rank_pool.world(1, None) as world:
        (outcome,) = world.outcomes(take_the_ninth)
    assert outcome.kind == "raised" and "8" in outcome.text
