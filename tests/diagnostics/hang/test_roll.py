"""A host that is silent is lost after a minute; one that left, or that was not listened to, is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from npu_plugins.diagnostics.hang.board import Alarm, Board
from npu_plugins.diagnostics.hang.failure import Rank
from npu_plugins.diagnostics.hang.recorder import Pending
from npu_plugins.diagnostics.hang.roll import Roll
from npu_plugins.diagnostics.hang.store import OwnStore, StoreGoneError


@pytest.fixture
def rolls(tmp_path: Path) -> list[Roll]:
    """Rank 0 on node-a and rank 1 on node-b, both in this process."""
    found = []
    for rank, place in enumerate(("node-a boot ns", "node-b boot ns")):
        board = Board(dist.FileStore(str(tmp_path / "store"), -1), 1, rank, tmp_path)
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
