"""A host that is silent is lost after a minute; one that left, or that was not listened to, is not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from npu_plugins.diagnostics.hang.board import Alarm, Board
from npu_plugins.diagnostics.hang.failure import Rank
from npu_plugins.diagnostics.hang.liveness import Process, ending, started
from npu_plugins.diagnostics.hang.recorder import Pending
from npu_plugins.diagnostics.hang.roll import Roll
from npu_plugins.diagnostics.hang.store import OwnStore, StoreGoneError


@pytest.fixture
def rolls(tmp_path: Path) -> list[Roll]:
    """Rank 0 on node-a and rank 1 on node-b, both in this process."""
    found = []
    for rank, place in enumerate(("node-a boot ns", "node-b boot ns")):
        board = Board(dist.FileStore(str(tmp_path / "store"), -1), "one", rank, tmp_path)
        found.append(Roll(board, Rank(rank, 2, "gloo", "cpu"), place))
        found[-1].join()
    return found


def listen(roll: Roll, seconds: range, *others: Roll) -> Alarm | None:
    for now in seconds:
        for other in others:
            assert other.notice([], float(now)) is None
        alarm = roll.notice([], float(now))
        if alarm is not None:
            return alarm
    return None


def test_hosts_that_beat_are_not_lost(rolls: list[Roll]) -> None:
    assert listen(rolls[0], range(100, 400, 2), rolls[1]) is None


def test_a_host_that_is_silent_for_a_minute_is_lost(rolls: list[Roll]) -> None:
    assert listen(rolls[0], range(100, 130, 2), rolls[1]) is None
    assert listen(rolls[0], range(130, 180, 2)) is None
    alarm = listen(rolls[0], range(180, 220, 2))
    assert alarm is not None and alarm.reason == "peer lost"
    assert alarm.sentence == "rank 1 is lost: nothing heard of node-b for 60 s"
    assert rolls[0].gone[1].kind == "silent" and not rolls[1].gone


def test_a_host_whose_ranks_left_is_not_lost(rolls: list[Roll]) -> None:
    assert listen(rolls[0], range(100, 130, 2), rolls[1]) is None
    rolls[1].board.leave({"0": 7})
    assert listen(rolls[0], range(130, 400, 2)) is None
    assert rolls[0].gone[1].kind == "left"


def test_a_process_that_was_stopped_itself_listens_anew(rolls: list[Roll]) -> None:
    assert listen(rolls[0], range(100, 140, 2), rolls[1]) is None
    assert listen(rolls[0], range(1000, 1050, 2)) is None


def test_a_rank_that_left_is_missed_only_in_a_call_that_it_did_not_make(
    rolls: list[Roll], monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import timedelta

    from npu_plugins.diagnostics.hang import recorder
    from npu_plugins.diagnostics.hang.dump import Group

    monkeypatch.setattr(recorder, "groups", lambda: (Group("0", "world", (0, 1)),))
    test_a_host_whose_ranks_left_is_not_lost(rolls)
    made = Pending("gloo", 6, "0", 7, False, timedelta(minutes=30))
    not_made = Pending("gloo", 7, "0", 8, False, timedelta(minutes=30))
    assert rolls[0].needed_and_gone({made: 100.0}, 500.0) is None
    alarm = rolls[0].needed_and_gone({not_made: 0.0}, 500.0)
    assert alarm is not None and "rank 1 ended" in alarm.sentence and "is waited for" in alarm.sentence


@pytest.mark.parametrize("status", [128 + 2, 128 + 15])
def test_a_neighbour_whose_status_says_that_it_was_asked_to_end_is_doubted_first(
    rolls: list[Roll], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    from datetime import timedelta

    from npu_plugins.diagnostics.hang import recorder
    from npu_plugins.diagnostics.hang.dump import Group

    monkeypatch.setattr(recorder, "groups", lambda: (Group("0", "world", (0, 1)),))
    roll, process = rolls[0], Process(1, 17, 1)
    rolls[1].board.leave({"0": 7})  # SystemExit(130): its exit told so
    assert roll._ended(process, ending(status << 8), 100.0) is None
    missed = Pending("gloo", 7, "0", 8, False, timedelta(minutes=30))
    assert roll.needed_and_gone({missed: 0.0}, 101.0) is None
    assert roll.notice([], 101.0) is None
    alarm = roll.notice([], 102.5)  # this rank was not asked: it is still here
    assert alarm is not None and f"ended with status {status}" in alarm.sentence
    assert Roll(roll.board, roll.who)._ended(process, ending(3 << 8), 100.0) == 1


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 15)", "os._exit(143)"])
def test_a_rank_that_was_asked_to_end_does_not_end_one_that_still_saves(rolls: list[Roll], end: str) -> None:
    program = f"import os; input(); {end}"
    for handler, told in ((signal.SIG_DFL, True), (lambda *_: None, False)):
        before = signal.signal(signal.SIGTERM, handler)
        try:
            child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
            assert rolls[0].neighbours.add(Process(1, child.pid, started(child.pid))) is None
            child.communicate(b"\n")
            (descriptor,) = rolls[0].neighbours.descriptors
            assert rolls[0].notice([descriptor], 100.0) is None, "the others may be asked as well"
            assert (rolls[0].notice([], 103.0) is not None) == told
        finally:
            signal.signal(signal.SIGTERM, before)


def test_a_store_whose_server_has_gone_is_not_asked() -> None:
    server = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    own = OwnStore(server, "test")
    own.set("key", "value")
    assert own.get("key") == "value" and own.get("other") is None
    assert own.first("key", "later") == "value" and own.first("new", "one") == "one"
    del server
    with pytest.raises(StoreGoneError, match="has ended with the process that held it"):
        own.get("key")
    assert not own.is_there and own.descriptors() == []
