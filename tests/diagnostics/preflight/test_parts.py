"""The parts of a preflight by themselves: clocks, places, reports, messages, work that does not come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.diagnostics.preflight import Finding, Report, environment_facts, random_facts, version_facts
from npu_plugins.diagnostics.preflight.board import Board, Received, StoreLostError, open_store
from npu_plugins.diagnostics.preflight.bounded import Done, Worker
from npu_plugins.diagnostics.preflight.clocks import Skew, judge, one_of_each_machine, skew_of
from npu_plugins.diagnostics.preflight.place import Place, ended_here, guessed_hosts
from npu_plugins.diagnostics.preflight.report import ranks_in_words
from npu_plugins.diagnostics.preflight.termination import HeldTermination
from npu_plugins.diagnostics.preflight.verdicts import of_meeting

seconds = st.floats(0, 0.5)


@given(st.floats(-1e4, 1e4), seconds, seconds, seconds)
def test_a_skew_is_no_further_off_than_it_says(
    ahead: float, there: float, within: float, back: float
) -> None:
    """By a clock that is so much ahead, a message that takes so long there, within and back."""
    sent = 1e6 + ahead
    received = 1e6 + there
    answered = received + within
    found = skew_of(sent, received, answered, answered + back + ahead)
    assert abs(found.seconds - ahead) <= found.error + 1e-6
    assert found.error == pytest.approx((there + back) / 2, abs=1e-6)


def test_a_clock_is_named_when_it_is_surely_off() -> None:
    hosts = {0: "a", 8: "b"}
    assert judge({8: Skew(1.2, 0.3)}, 1.0, hosts) == [], "it may be 0.9 s"
    (finding,) = judge({8: Skew(-1.5, 0.3)}, 1.0, hosts)
    assert finding.what == "the clock of host b (rank 8) is 1.500 s behind that of host a (rank 0), ± 0.300 s"


HERE = Place.here(0, {})


def test_ranks_of_a_machine_have_one_clock() -> None:
    places = {rank: replace(HERE, rank=rank, machine=f"m{rank // 2}") for rank in range(6)}
    assert one_of_each_machine(places) == [2, 4]


def test_a_process_that_has_ended_is_seen_even_if_its_number_is_used_again() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    place = replace(HERE, rank=1, pid=child.pid, started=0)
    mine, elsewhere = replace(HERE, pid=os.getpid()), replace(HERE, rank=2, pid=child.pid, machine="other")
    assert ended_here([0, 1], {0: mine, 1: place}, HERE) == []
    assert ended_here([1], {1: replace(place, started=1)}, HERE) == [1], "another process with its number"
    child.kill()
    deadline = time.monotonic() + 10
    while not ended_here([1], {1: place}, HERE) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended_here([0, 1, 2], {0: mine, 1: place, 2: elsewhere}, HERE) == [1], "a zombie counts as ended"
    child.wait()
    assert ended_here([1], {1: place}, HERE) == [1]


def test_hosts_of_missing_ranks_are_those_of_their_neighbours() -> None:
    met = {
        rank: replace(HERE, rank=rank, host=f"host{rank // 4}", local_rank=rank % 4)
        for rank in range(12)
        if rank not in (0, 5, 8, 9)
    }
    hosts = guessed_hosts(met, 12)
    assert hosts[0] == "host0" and hosts[5] == "host1" and hosts[8] == hosts[9] == "host2"
    del met[10], met[11]
    assert 8 not in guessed_hosts(met, 12), "of a host from which nobody has come nothing is known"


def received(rank: int, seen: float, came: float, machine: str = "m") -> Received:
    """Return the message with which a rank comes."""
    return Received([replace(HERE, rank=rank, host="h", machine=machine).to_message(), came], seen)


def test_who_comes_late_is_told_by_the_clock_of_rank_0() -> None:
    opened = 1000.0
    messages = {
        0: received(0, 1000.0, 1000.0),
        1: received(1, 1000.1, 990.0),  # was there before rank 0, and shares its clock
        2: received(2, 1000.1, 400.0, machine="other"),  # was there before, by a clock that is wrong
        3: received(3, 1030.0, 5000.0, machine="other"),
    }
    outcome = of_meeting(messages, opened, 4, limit=60.0)
    assert outcome.figures == {"seconds_after_the_first": {0: 10.0, 1: 0.0, 2: pytest.approx(10.1), 3: 40.0}}
    (finding,) = outcome.findings
    assert (finding.kind, finding.level, finding.ranks) == ("late", "warning", (3,))
    assert not outcome.stop
    assert of_meeting(messages, opened, 4, limit=100.0).findings == [], "within half of the limit"
    assert of_meeting(messages, opened, 5, limit=60.0).findings[0].ranks == (4,)


def test_a_report_reads_well_and_comes_back_from_json() -> None:
    report = Report(4, "4 ranks on 1 host", {"meeting": "4 ranks"}, {"clocks": {}})
    assert report.text() == "preflight: 4 ranks on 1 host\n  meeting  4 ranks\nready"
    report.findings = [
        Finding("late", "warning", (1,), "rank 1 came late", "look at its disk"),
        Finding("slow", "error", (0, 2), "the link is slow", "look at the cable"),
    ]
    assert report.text().splitlines()[2:] == [
        "warning: rank 1 came late",
        "  → look at its disk",
        "error: the link is slow",
        "  → look at the cable",
        "not ready: 1 error, 1 warning",
    ]
    assert Report.from_json(report.to_json()) == report
    assert '"ready": false' in report.to_json()
    assert report.sentence() == "preflight: the link is slow; look at the cable"
    with pytest.raises(DiagnosticsError, match="no report of a preflight"):
        Report.from_json("{}")
    with pytest.raises(DiagnosticsError, match="kind 'odd'"):
        Finding("odd", "error", (), "", "")


def test_ranks_are_told_in_runs() -> None:
    hosts = {rank: f"h{rank // 8}" for rank in range(80)}
    assert ranks_in_words([3], hosts) == "rank 3 (host h0)"
    assert ranks_in_words([9, 0, 1, 2, 8], hosts) == "ranks 0–2, 8, 9 (hosts h0, h1)"
    assert ranks_in_words(range(80), hosts) == "ranks 0–79 (hosts h0, h1, h2, h3, … 6 more)"
    assert ranks_in_words([1, 2], {}) == "ranks 1, 2"


def test_messages_reach_rank_0_and_answers_all() -> None:
    store = dist.HashStore()
    boards = [Board(store, rank, 3, "test") for rank in range(3)]
    for board in boards[1:]:
        board.post("topic", {"from": board.rank})
    assert boards[0].collect("topic", 0.01).keys() == {1, 2}, "rank 0 has not posted"
    boards[0].post("topic", None)
    found = boards[0].collect("topic", 5.0)
    assert {rank: message.value for rank, message in found.items()} == {
        0: None,
        1: {"from": 1},
        2: {"from": 2},
    }
    assert boards[0].collect("other", 60.0, lambda ranks: ranks) == {}, "all have ended"
    boards[0].answer("topic", [1])
    assert [board.wait_for_answer("topic", 1.0) for board in boards] == [[1]] * 3
    with pytest.raises(StoreLostError, match="rank 0 has not answered for 0 s"):
        boards[1].wait_for_answer("other", 0.01)
    with pytest.raises(StoreLostError, match="the process of rank 0 has ended"):
        boards[1].wait_for_answer("other", 60.0, lambda: True)
    assert boards[1].wait_for_answer("topic", 60.0, lambda: True) == [1], "it answered before it ended"
    again = [Board(store, rank, 3, "test") for rank in range(3)]
    assert again[0].collect("topic", 0.01) == {}, "a new board has new topics"


def test_a_gap_left_by_a_rank_that_died_hides_nobody() -> None:
    store = dist.HashStore()
    boards = [Board(store, rank, 3, "test") for rank in range(3)]
    boards[1]._store.add("topic count", 1)  # it took its place, and was killed
    for board in (boards[0], boards[2]):
        board.post("topic", None)
    assert boards[0].collect("topic", 0.01).keys() == {0, 2}


def test_a_store_without_a_launcher_is_refused() -> None:
    with pytest.raises(StoreLostError, match="MASTER_ADDR is not set"):
        open_store({"RANK": "0", "WORLD_SIZE": "2"})


def test_work_that_does_not_come_back() -> None:
    worker, free = Worker(), threading.Event()
    assert worker.run(lambda: 7, 10.0) == Done(value=7)
    assert worker.run(lambda: 1 // 0, 10.0).error == "ZeroDivisionError: integer division or modulo by zero"
    assert worker.run(free.wait, 60.0, hopeless=lambda: True).stuck
    assert worker.stuck
    worker.close()  # does not wait for it
    free.set()
    worker._thread.join(10)
    assert not worker._thread.is_alive()


def test_sigterm_is_held_back_while_a_rank_is_lost() -> None:
    lost, caught = [True], []
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    held = HeldTermination(lambda: lost[0])
    try:
        held.begin()
        signal.raise_signal(signal.SIGTERM)
        assert caught == [], "the report comes first"
        lost[0] = False
        signal.raise_signal(signal.SIGTERM)
        assert caught == [signal.SIGTERM], "as without a preflight"
        held.end()
        signal.raise_signal(signal.SIGTERM)
        assert caught == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_facts_of_this_process() -> None:
    versions = {fact.name: fact.value for fact in version_facts()}
    assert versions["torch"] == torch.__version__.split("+")[0] or versions["torch"] == torch.__version__
    assert versions["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    environ = {
        "HCCL_ALGO": "ring",
        "HCCL_IF_IP": "10.0.0.1",
        "NPU_SIM_ANNOUNCED": "1",
        "OMP_NUM_THREADS": "2",
        "X": "1",
    }
    facts = {fact.name: fact for fact in environment_facts(environ)}
    assert facts["HCCL_ALGO"].value == "ring" and facts["HCCL_EXEC_TIMEOUT"].value == "(not set)"
    assert facts["OMP_NUM_THREADS"].level == "warning"
    assert not {"HCCL_IF_IP", "NPU_SIM_ANNOUNCED", "X"} & facts.keys()


def test_random_states_tell_seeds_and_draws_apart() -> None:
    def states() -> list[str]:
        return [fact.value for fact in random_facts(torch.device("cpu"))]

    before = torch.get_rng_state()
    try:
        torch.manual_seed(3)
        first = states()
        torch.rand(1)
        assert states() != first
        torch.manual_seed(3)
        assert states() == first
    finally:
        torch.set_rng_state(before)
