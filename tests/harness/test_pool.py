"""The harness keeps its promises: results in order, failures told in full, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.harness import HarnessError, RankFailure, RankPool, World
from tests.harness.fixtures import on_ranks

FACTOR = 10


def rank_number() -> int:
    return dist.get_rank()


def all_reduced(factor: int) -> list[float]:
    tensor = torch.full((3,), float(dist.get_rank() * factor * FACTOR))
    dist.all_reduce(tensor)
    return tensor.tolist()


def fail_on(bad: int, size: int) -> int:
    if dist.get_rank() == bad:
        raise KeyError(f"rank {bad} of {size} breaks")
    return dist.get_rank()


def sleep_on(bad: int, seconds: float) -> None:
    if dist.get_rank() == bad:
        time.sleep(seconds)


def die_on(bad: int) -> None:
    if dist.get_rank() == bad:
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_peers() -> None:
    if dist.get_rank() == 0:
        raise RuntimeError("never joins the barrier")
    dist.barrier()


@pytest.mark.parametrize("ranks", [1, 2, 4], indirect=True)
@pytest.mark.ranks(1, backend="gloo")
def test_results_come_in_the_order_of_ranks(ranks: World) -> None:
    assert ranks.run(rank_number) == list(range(ranks.size))


@pytest.mark.ranks(2, backend="gloo")
def test_collectives_arguments_closures_and_globals_work(ranks: World) -> None:
    offset = 7

    def closure() -> int:
        return dist.get_rank() + offset

    assert ranks.run(all_reduced, 3) == [[30.0] * 3] * 2
    assert ranks.run(all_reduced, factor=1) == [[10.0] * 3] * 2
    assert ranks.run(closure) == [7, 8]


def fastest(action: Callable[[], object], times: int) -> float:
    """Seconds of the fastest run: the others say how busy the machine is."""
    elapsed = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        elapsed.append(time.perf_counter() - start)
    return min(elapsed)


@pytest.mark.ranks(2, backend="gloo")
def test_one_call_on_a_living_world_costs_milliseconds(ranks: World) -> None:
    assert fastest(lambda: ranks.run(rank_number), 50) < 0.02


def test_a_fresh_world_costs_less_than_an_import_of_torch(rank_pool: RankPool) -> None:
    def make_use_and_stop() -> None:
        with rank_pool.world(2, "gloo") as world:
            assert world.run(rank_number) == [0, 1]

    assert fastest(make_use_and_stop, 5) < 0.5


@pytest.mark.ranks(2, backend="gloo")
def test_every_rank_that_raises_shows_its_traceback(ranks: World) -> None:
    def fail() -> None:
        print("said before the end")
        raise ValueError(f"bad value on rank {dist.get_rank()}")

    with pytest.raises(RankFailure) as caught:
        ranks.run(fail)
    text = str(caught.value)
    for rank in range(2):
        assert f"ValueError: bad value on rank {rank}" in text
        assert f"-- output of rank {rank} --\nsaid before the end" in text
    assert [type(outcome.error) for outcome in caught.value.outcomes] == [ValueError, ValueError]
    assert ranks.run(rank_number) == [0, 1], "an exception alone does not cost the world"


@pytest.mark.ranks(2, backend="gloo")
def test_one_raising_rank_fails_the_run(ranks: World) -> None:
    outcomes = ranks.outcomes(fail_on, 1, size=2)
    assert [outcome.kind for outcome in outcomes] == ["returned", "raised"]
    assert outcomes[0].value == 0
    assert "rank 1 of 2 breaks" in outcomes[1].text and "in fail_on" in outcomes[1].text


@pytest.mark.ranks(2, backend="gloo")
def test_a_rank_waiting_for_a_failed_one_shows_where_it_waits(ranks: World) -> None:
    ranks.grace = 0.3
    start = time.perf_counter()
    with pytest.raises(RankFailure, match="rank 0 raised, rank 1 hung") as caught:
        ranks.run(wait_for_peers)
    assert time.perf_counter() - start < 10
    assert "never joins the barrier" in str(caught.value)
    assert "in wait_for_peers" in caught.value.outcomes[1].text
    with pytest.raises(HarnessError, match="ask the pool for a new one"):
        ranks.run(rank_number)
    ranks.restart()
    assert ranks.run(rank_number) == [0, 1]


def test_a_hanging_rank_is_dumped_and_killed_and_the_pool_lives(rank_pool: RankPool) -> None:
    with rank_pool.world(2, "gloo") as world:
        pids = list(rank_pool.pids[world.key])
        with pytest.raises(RankFailure, match="rank 1 hung") as caught:
            world.run(sleep_on, 1, 1000.0, timeout=0.5)
        assert caught.value.outcomes[0].ok
        assert "in sleep_on" in caught.value.outcomes[1].text
        assert not any(psutil.pid_exists(pid) for pid in pids)
    with rank_pool.world(2, "gloo") as world:
        assert world.run(rank_number) == [0, 1]


def test_nobody_waits_for_a_rank_that_is_known_to_sleep_alone(rank_pool: RankPool) -> None:
    with rank_pool.world(3, "gloo") as world:
        world.sleepers = frozenset({1})
        start = time.perf_counter()
        outcomes = world.outcomes(sleep_on, 1, 1000.0)
        assert time.perf_counter() - start < 30, "not the 60 s that others would be waited for"
    assert [outcome.kind for outcome in outcomes] == ["returned", "hung", "returned"]
    assert "in sleep_on" in outcomes[1].text


def test_a_dying_rank_is_told_and_the_pool_lives(rank_pool: RankPool) -> None:
    with rank_pool.world(3, "gloo") as world:
        with pytest.raises(RankFailure) as caught:
            world.run(die_on, 2)
        kinds = [outcome.kind for outcome in caught.value.outcomes]
        assert kinds == ["returned", "returned", "died"]
        assert "killed by SIGKILL" in str(caught.value)
    with rank_pool.world(3, "gloo") as world:
        assert world.run(rank_number) == [0, 1, 2]


@pytest.mark.ranks(1, backend=None)
def test_a_crash_in_native_code_shows_the_python_stack(ranks: World) -> None:
    def crash() -> None:
        import ctypes

        ctypes.string_at(0)

    (outcome,) = ranks.outcomes(crash)
    assert outcome.kind == "died"
    assert "SIGSEGV" in outcome.text and "in crash" in outcome.text


@pytest.mark.ranks(1, backend=None)
def test_a_result_that_cannot_be_pickled_is_an_error(ranks: World) -> None:
    def unpicklable() -> object:
        return (item for item in "abc")

    (outcome,) = ranks.outcomes(unpicklable)
    assert outcome.kind == "raised" and "cannot be sent back" in outcome.text


def test_each_world_starts_clean(rank_pool: RankPool) -> None:
    def spoil() -> float:
        value = torch.rand(1).item()
        torch.set_default_dtype(torch.float64)
        os.environ["SPOILED"] = "1"
        dist.new_group([0])
        return value

    def look() -> tuple:
        return (
            torch.rand(1).item(),
            torch.get_default_dtype(),
            os.environ.get("SPOILED"),
            dist.get_world_size(),
        )

    with rank_pool.world(2, "gloo") as world:
        drawn = world.run(spoil)
    with rank_pool.world(2, "gloo") as world:
        assert world.run(look) == [(value, torch.float32, None, 2) for value in drawn]


def test_children_of_a_rank_go_with_it(rank_pool: RankPool) -> None:
    def spawn() -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).pid

    with rank_pool.world(2, None) as world:
        children = world.run(spawn)
        assert all(psutil.pid_exists(pid) for pid in children)
    assert _all_gone(children)


def test_ranks_die_with_their_parent(tmp_path: Path) -> None:
    script = (
        "import os, signal\n"
        "from tests.harness import RankPool, WorldSpec\n"
        "pool = RankPool(dict(os.environ), imports=())\n"
        "world = pool.open(WorldSpec(2, backend=None))\n"
        "print(os.getpid(), *pool.pids[world.key], pool._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0", TMPDIR=str(tmp_path)),
        cwd=root,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert _all_gone([int(pid) for pid in done.stdout.split()])


def test_a_world_that_cannot_join_says_why(rank_pool: RankPool) -> None:
    with pytest.raises(RankFailure, match="Joining a gloo world failed(.|\n)*timed out"):
        rank_pool.world(1, "gloo", group_timeout=1e-9).__enter__()


@pytest.mark.parametrize("size", [0, 9, -1])
def test_a_world_of_impossible_size_is_refused(size: int, rank_pool: RankPool) -> None:
    with pytest.raises(ValueError, match="1 to 8 ranks"):
        rank_pool.world(size, "gloo").__enter__()


@on_ranks(2, backend="gloo")
def test_the_decorator_runs_the_body_on_ranks() -> None:
    assert dist.get_world_size() == 2 and int(os.environ["RANK"]) == dist.get_rank()


@pytest.mark.parametrize("shift", [1, 2])
@on_ranks(2, backend="gloo")
def test_the_decorator_passes_parameters(shift: int) -> None:
    tensor = torch.tensor(shift)
    dist.all_reduce(tensor)
    assert tensor.item() == 2 * shift


@pytest.mark.ranks(2, backend="gloo")
def test_a_skip_on_a_rank_skips_the_test(ranks: World) -> None:
    def body() -> None:
        pytest.skip("told by a rank")

    with pytest.raises(pytest.skip.Exception, match="told by a rank"):
        on_ranks(2, backend="gloo")(body)(ranks)


def _all_gone(pids: list[int]) -> bool:
    """True once all processes have ended; a SIGKILL needs a moment to work."""
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
