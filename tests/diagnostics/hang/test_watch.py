"""Ranks under the watch: whatever ends or stops one of them, all end soon, and one report names it.

Each case is a world of its own; they run side by side, as most of their time is waiting.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from npu_plugins.diagnostics import DiagnosticsError, watch_for_hangs
from npu_plugins.diagnostics.hang.watch import find_watch, start_watch
from tests.harness import Outcome, RankPool, World
from tests.harness.npu import why_no_npu
from tests.harness.spec import WorldSpec

LIMIT = "3"
RINGS = {"TORCH_FR_BUFFER_SIZE": "100", "TORCH_HCCL_TRACE_BUFFER_SIZE": "100", "HCCL_TIMEOUT": LIMIT}
SIZE = 2
PRELOADED = ("npu_plugins.diagnostics.hang.watch", "npu_plugins.diagnostics.hang.report")
"""What every rank would import."""


def watched(reports: Path) -> torch.Tensor:
    """Start the watch, wait until it knows the other rank, and return what has been reduced once."""
    device = "npu" if dist.get_backend() == "hccl" else "cpu"
    watch = start_watch({**os.environ, "NPU_PLUGINS_REPORTS": str(reports)}, interval=0.1)
    assert watch is not None and start_watch() is watch
    tensor = torch.ones(3, device=device)
    dist.all_reduce(tensor)
    deadline = time.monotonic() + 30
    while watch.session is None or not watch.session.roll.neighbours.descriptors:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return tensor


def end_with(error: BaseException) -> None:
    """End as the interpreter does with an exception that nobody catches; the harness would catch it."""
    sys.excepthook(type(error), error, error.__traceback__)
    os._exit(1)


def as_a_program(body: Callable[[Any], Any], reports: Path) -> Any:
    if body is leaves_at_once:
        return leaves_at_once(reports)
    tensor = watched(reports)
    dist.barrier()
    try:
        return body(tensor)
    except RuntimeError as error:
        return end_with(error)


def one_more_step(tensor: torch.Tensor) -> list[float]:
    dist.all_reduce(tensor)
    return tensor.tolist()


def sleeps(tensor: torch.Tensor) -> None:
    if dist.get_rank() == 1:
        time.sleep(1000)
    one_more_step(tensor)


def is_killed(tensor: torch.Tensor) -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)


def first_is_killed(tensor: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)


def ends_with_a_status(tensor: torch.Tensor) -> None:
    if dist.get_rank() == 1:
        os._exit(7)
    time.sleep(1000)


def raises(tensor: torch.Tensor) -> None:
    if dist.get_rank() == 1:
        raise RuntimeError("bad sample 17")
    one_more_step(tensor)


def leaves(tensor: torch.Tensor) -> None:
    if dist.get_rank() == 1:
        watch = find_watch()
        assert watch is not None
        watch.leave()  # as at the exit of the interpreter
        os._exit(0)
    one_more_step(tensor)


def leaves_at_once(reports: Path) -> None:
    """Rank 1 is done before its watch has met the other, which answers late."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        watch = start_watch({**os.environ, "NPU_PLUGINS_REPORTS": str(reports)}, interval=0.1)
        assert watch is not None
        while watch._greeting is None:
            time.sleep(0.02)
        assert watch.session is None
        store.set("done", "")
        dist.destroy_process_group()
        watch.leave()
        os._exit(0)
    store.wait(["done"])
    try:
        watched(reports)
    except RuntimeError as error:
        end_with(error)


def receives_what_nobody_sends(tensor: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        dist.recv(tensor, 1)
        tensor.tolist()
    time.sleep(1000)


def is_stopped(tensor: torch.Tensor) -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    one_more_step(tensor)


FAULTS: dict[Callable[[Any], Any], str] = {
    sleeps: "Rank 1 did not come to all_reduce",
    is_killed: "Rank 1 .*was killed by SIGKILL",
    first_is_killed: "Rank 0 .*was killed by SIGKILL",
    ends_with_a_status: "Rank 1 .*status 7",
    raises: "Rank 1 raised an exception .*bad sample 17",
    leaves: "Rank 1 did not come to",
    leaves_at_once: r"Rank 1 did not come to .* ended \(it said that it was done\)",
    receives_what_nobody_sends: "Rank 1 did not come to recv from rank 1",
    is_stopped: "Rank 1 ",
}
ON_HCCL = (sleeps, is_killed, raises, receives_what_nobody_sends)


AT_ONCE = 6
"""Worlds beside the one of the rank that is stopped."""
CASES = [("gloo", fault) for fault in FAULTS] + [("hccl", fault) for fault in ON_HCCL]
Ends = dict[tuple[str, Callable[[Any], Any]], tuple[list[Outcome], Path]]


@pytest.fixture(scope="module")
def ends(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """What became of the ranks of each case, and the folder of its report."""
    rank_pool.preload(*PRELOADED)
    folder = tmp_path_factory.mktemp("ends")
    begun: dict[tuple[str, Callable[[Any], Any]], tuple[World, Path]] = {}
    found: Ends = {}

    def begin(backend: str, fault: Callable[[Any], Any]) -> None:
        world, reports = rank_pool.open(WorldSpec(SIZE, backend=backend, env=RINGS)), folder / backend
        world.grace = 30.0
        world.begin(as_a_program, fault, reports / fault.__name__)
        begun[backend, fault] = world, reports / fault.__name__

    def end(case: tuple[str, Callable[[Any], Any]]) -> None:
        world, reports = begun[case]
        found[case] = world.collect(60.0), reports
        world.stop()

    begin("gloo", is_stopped)  # takes as long as all others
    rest = [case for case in CASES if case[1] is not is_stopped and (case[0] == "gloo" or not why_no_npu())]
    for batch in (rest[:AT_ONCE], rest[AT_ONCE:]):
        for case in batch:
            begin(*case)
        for case in batch:
            end(case)
    end(("gloo", is_stopped))
    return found


@pytest.mark.parametrize(("backend", "fault"), CASES)
def test_a_fault_of_one_rank_ends_all_with_a_report_that_names_it(
    backend: str, fault: Callable[[Any], Any], ends: Ends
) -> None:
    if (backend, fault) not in ends:
        pytest.skip(str(why_no_npu()))
    check(fault, *ends[backend, fault])


def check(fault: Callable[[Any], Any], outcomes: list[Outcome], reports: Path) -> None:
    logs = "\n".join(outcome.log for outcome in outcomes)
    assert [outcome.kind for outcome in outcomes] == ["died"] * SIZE, (fault, outcomes)
    (report,) = reports.glob("*/report.txt")
    text = " ".join(report.read_text(encoding="utf-8").split())
    cause = text.partition("Cause: ")[2].partition(" Mend: ")[0]
    assert re.match(FAULTS[fault], cause), (fault, text)
    assert logs.count("Hang report:") == 1, logs
    well = {rank for rank, outcome in enumerate(outcomes) if outcome.text.startswith("exited with code 0")}
    assert well <= ({1} if fault in (leaves, leaves_at_once) else set()), outcomes


def trains_well(tensor: torch.Tensor) -> bool:
    """Steps of uneven length, an evaluation on one rank that others wait for, and a long computation."""
    group = dist.new_group([0, 1], group_desc="dp")
    for step in range(3):
        dist.all_reduce(tensor, group=group)
        if dist.get_rank() == 0:
            time.sleep(1.2 if step else 0.0)
        tensor.tolist()
    deadline = time.monotonic() + 1.5 * float(LIMIT)
    while time.monotonic() < deadline:
        torch.ones(64, 64) @ torch.ones(64, 64)
    return find_watch() is not None


def asks(tensor: torch.Tensor) -> bool:
    """Ask rank 0 by a signal while it is inside a collective, which goes on when the report is written."""
    reports = Path(os.environ["NPU_PLUGINS_REPORTS"])
    if dist.get_rank() == 1:
        watch = find_watch()
        assert watch is not None and watch.session is not None
        watch.session.roll.neighbours.signal(signal.SIGUSR2)
        deadline = time.monotonic() + 30
        while not list(reports.glob("*/report.txt")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    one_more_step(tensor)
    return True


def test_no_alarm_where_nothing_is_wrong_and_a_report_on_demand_lets_the_job_go_on(
    rank_pool: RankPool, tmp_path: Path
) -> None:
    rank_pool.preload(*PRELOADED)
    backends = ["gloo"] if why_no_npu() else ["gloo", "hccl"]
    patient = {**RINGS, "HCCL_TIMEOUT": "100"}
    worlds = {}
    for backend in backends:
        well, asked = tmp_path / backend / "well", tmp_path / backend / "asked"
        worlds[well] = rank_pool.open(WorldSpec(SIZE, backend=backend, env=RINGS))
        env = patient | {"NPU_PLUGINS_REPORTS": str(asked)}
        worlds[asked] = rank_pool.open(WorldSpec(SIZE, backend=backend, env=env))
        worlds[well].begin(as_a_program, trains_well, well)
        worlds[asked].begin(as_a_program, asks, asked)
    for folder, world in worlds.items():
        assert [outcome.value for outcome in world.collect(60.0)] == [True] * SIZE, folder
        world.stop()
        assert world.exits == {0: 0, 1: 0}
    for backend in backends:
        assert not (tmp_path / backend / "well").exists()
        (report,) = (tmp_path / backend / "asked").glob("*/report.txt")
        assert "asked" in report.read_text(encoding="utf-8")


def test_ranks_that_all_raise_alike_need_no_report(rank_pool: RankPool, tmp_path: Path) -> None:
    def raises_too(tensor: torch.Tensor) -> None:
        raise RuntimeError("no such file")

    rank_pool.preload(*PRELOADED)
    with rank_pool.world(SIZE, "gloo", env=RINGS | {"HCCL_TIMEOUT": "100"}) as world:
        world.grace = 30.0
        outcomes = world.outcomes(as_a_program, raises_too, tmp_path)
    assert [outcome.text.splitlines()[0] for outcome in outcomes] == ["exited with code 1"] * SIZE
    assert all("no such file" in outcome.log for outcome in outcomes)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"NPU_PLUGINS_HANG_WATCH": "yes"}, "NPU_PLUGINS_HANG_WATCH=yes is neither 0 nor 1"),
        ({"NPU_PLUGINS_RING": "-1"}, "NPU_PLUGINS_RING=-1 is no whole number"),
    ],
)
def test_settings_that_are_none_are_refused(
    environ: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DiagnosticsError, match=told):
        watch_for_hangs()


def test_switched_off_there_is_no_watch() -> None:
    before = find_watch()  # of a training in this process, if a test has made one
    assert start_watch({"NPU_PLUGINS_HANG_WATCH": "0"}) is None
    assert find_watch() is before
