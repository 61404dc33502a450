"""Single cases that the histories on paper do not have: two ranks that send, slow ranks, errors of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.diagnostics.hang.analysis import analyse
from npu_plugins.diagnostics.hang.dump import Call, Frame, Group, RankDump
from npu_plugins.diagnostics.hang.findings import Absence, Cause, Findings
from tests.diagnostics.hang.histories import TORCH, USER, source

WORLD = Group("0", "default_pg", (0, 1, 2))
WAITING = (Frame(TORCH, 99, "all_reduce"), Frame(USER, 26, "step"))
ELSEWHERE = (Frame(USER, 7, "load"), Frame(USER, 90, "main"))


def call(sequence: int, state: str = "scheduled", op: str = "all_reduce", **other: object) -> Call:
    shape, created = other.pop("shape", (8,)), other.pop("created", 100.0 + sequence)
    known = {"group": "0", "sequence": sequence, "p2p": False, "op": op, "state": state, "stack": WAITING}
    data = {"input_shapes": (shape,), "input_dtypes": ("Float",), "output_shapes": (), "output_dtypes": ()}
    return Call(**{**known, **data, "created": created, **other})


def dump(rank: int, *calls: Call, **other: object) -> RankDump:
    known = {"world_size": 3, "host": "node-1", "pid": 100 + rank, "reason": "timeout", "taken": 400.0}
    data = {"groups": (WORLD,), "stacks": {"MainThread": WAITING}, "timeout": 300.0, "device": "cpu"}
    return RankDump(rank=rank, calls=calls, **{**known, **data, **other})


def found(*dumps: RankDump, absent: dict[int, Absence] | None = None) -> Findings:
    return analyse({one.rank: one for one in dumps}, absent or {}, source=source)


def first(*dumps: RankDump, absent: dict[int, Absence] | None = None) -> Cause:
    return found(*dumps, absent=absent).causes[0]


def test_two_ranks_that_send_to_each_other_are_a_deadlock() -> None:
    sends = [dump(rank, call(1, op="send", p2p=True, peer=1 - rank)) for rank in (0, 1)]
    cause = first(*sends, dump(2, call(1)))
    assert (cause.kind, cause.ranks) == ("deadlock", (0, 1))
    assert "rank 0 waits in send to rank 1 of all ranks (Float [8])" in cause.sentence
    assert "batch_isend_irecv" in cause.mend


@pytest.mark.parametrize(
    ("received", "kind", "words"),
    [
        ({"shape": (9,)}, "shape", "Rank 0 sends Float [8] at"),
        ({"input_dtypes": ("Half",)}, "dtype", "but rank 1 receives Half [8] at"),
    ],
)
def test_a_receive_that_does_not_fit_what_is_sent_is_told(
    received: dict[str, object], kind: str, words: str
) -> None:
    pair = {"p2p": True, "group": "0"}
    sends = dump(0, call(1, op="send", peer=1, **pair))
    receives = dump(1, call(1, op="recv", peer=0, **pair, **received))
    cause = first(sends, receives, dump(2, call(1)))
    assert (cause.kind, cause.ranks) == (kind, (0, 1))
    assert words in cause.sentence


def test_a_receive_whose_sender_is_elsewhere_names_the_sender() -> None:
    waits = dump(0, call(1, op="recv", p2p=True, peer=2))
    cause = first(waits, dump(1, stacks={"MainThread": ELSEWHERE}), dump(2, stacks={"MainThread": ELSEWHERE}))
    assert (cause.kind, cause.ranks) == ("not entered", (2,))
    assert "Rank 2 did not come to recv from rank 2 of all ranks" in cause.sentence
    assert "train.py:7 in load (`time.sleep(1000)`)" in cause.sentence


def test_a_rank_that_goes_on_calling_is_slow_and_not_stuck() -> None:
    own = Group("1", "", (2,))
    steps = [call(step, "completed", group="1", created=100.0 + step) for step in range(2, 300, 5)]
    cause = first(dump(0, call(1)), dump(1, call(1)), dump(2, *steps, groups=(WORLD, own)))
    assert (cause.kind, cause.ranks) == ("slow", (2,))
    assert "60 calls since, the last 3 s before the dump" in cause.sentence


def test_a_call_that_all_came_to_and_that_does_not_end_is_the_links_fault() -> None:
    cause = first(*(dump(rank, call(1)) for rank in range(3)))
    assert (cause.kind, cause.ranks) == ("transfer", (0, 1, 2))


def test_of_started_devices_the_one_that_has_not_begun_is_named() -> None:
    cause = first(dump(0, call(1, "started")), dump(1, call(1)), dump(2, call(1, "started")))
    assert (cause.kind, cause.ranks) == ("transfer", (1,))


def test_two_groups_of_one_name_are_told() -> None:
    other = Group("0", "", (1, 2))
    cause = first(dump(0, call(1)), dump(1, call(1), groups=(other,)), dump(2, call(1)))
    assert (cause.kind, cause.ranks) == ("membership", (0, 1))
    assert "of ranks 0-2, but rank 1 of ranks 1-2" in cause.sentence


@pytest.mark.parametrize("op", ["all_gather", "all_to_all_single", "reduce_scatter_tensor"])
def test_amounts_that_may_differ_are_no_fault_beside_a_rank_that_is_missing(op: str) -> None:
    uneven = [dump(rank, call(1, op=op, shape=(rank + 1,))) for rank in (0, 1)]
    cause = first(*uneven, dump(2, stacks={"MainThread": ELSEWHERE}))
    assert (cause.kind, cause.ranks) == ("not entered", (2,))


def test_names_of_one_operation_do_not_differ() -> None:
    names = ("_allgather_base", "all_gather_into_tensor", "gloo:all_gather_into_tensor")
    cause = first(*(dump(rank, call(1, op=name)) for rank, name in enumerate(names)))
    assert cause.kind == "transfer"


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1",
        "DistBackendError: Timed out waiting 300000ms for recv operation to complete",
        "RuntimeError: HCCL function error: HcclAllReduce, error code is 9",
        "RuntimeError: NPU function error: AclrtSynchronizeStream, error code is 107020",
        "EI0002: The wait execution of the Notify register times out",
    ],
)
def test_an_error_that_another_rank_caused_is_not_the_cause(error: str) -> None:
    late = dump(0, call(1), reason="exception", error=error, error_stack=WAITING)
    cause = first(late, dump(1, call(1)), dump(2, stacks={"MainThread": ELSEWHERE}))
    assert (cause.kind, cause.ranks) == ("not entered", (2,))
    alone = first(*(replace(late, rank=rank, calls=()) for rank in range(3)))
    assert (alone.kind, alone.ranks) == ("consequence", (0, 1, 2))


def test_a_timeout_outside_of_communication_is_an_exception_as_any() -> None:
    download = dump(1, reason="exception", error="ReadTimeout: read timed out", error_stack=ELSEWHERE)
    cause = first(dump(0, call(1)), download, dump(2, call(1)))
    assert (cause.kind, cause.ranks) == ("exception", (1,))


def test_the_earliest_exception_is_the_cause_and_the_like_ones_are_drawn_together() -> None:
    raised = {"reason": "exception", "error_stack": ELSEWHERE}
    causes = found(
        dump(0, taken=390.0, error="ValueError: token 17", **raised),
        dump(1, taken=380.0, error="OutOfMemoryError: NPU out of memory", memory={"free": 1}, **raised),
        dump(2, taken=391.0, error="ValueError: token 23", **raised),
    )
    assert [(cause.kind, cause.ranks) for cause in causes.causes] == [
        ("out of memory", (1,)),
        ("exception", (0, 2)),
    ]
    assert causes.memory == {1: {"free": 1}}


@pytest.mark.parametrize(
    ("absence", "kinds"),
    [
        (Absence("killed", "SIGKILL", 370.0), ["killed", "exception"]),
        (Absence("killed", "SIGKILL", 390.0), ["exception"]),
        (Absence("killed", "SIGTERM"), ["exception"]),
        (Absence("killed", "SIGSEGV", 390.0), ["exception", "killed"]),
        (Absence("failed", "status 3", 370.0), ["failed", "exception"]),
    ],
)
def test_what_a_launcher_kills_after_the_first_fault_is_no_cause(absence: Absence, kinds: list[str]) -> None:
    raised = dump(0, taken=380.0, reason="exception", error="ValueError: no", error_stack=ELSEWHERE)
    causes = found(raised, dump(1, call(1)), absent={2: absence}).causes
    assert [cause.kind for cause in causes] == kinds


def test_a_process_that_torch_npu_aborts_after_an_error_of_hccl_is_not_the_cause() -> None:
    late = {"reason": "exception", "error": "error code is 507049: EI0005", "error_stack": WAITING}
    gone = {0: Absence("killed", "SIGABRT", 300.0)}
    cause = first(dump(1, call(1, shape=(3,)), **late), dump(2, call(1), **late), absent=gone)
    assert (cause.kind, cause.ranks) == ("shape", (1, 2))
    alone = first(dump(1, call(1)), dump(2, call(1)), absent=gone)
    assert (alone.kind, alone.ranks) == ("killed", (0,))


def test_a_rank_of_which_nothing_is_known_is_silent() -> None:
    cause = first(dump(0, call(1)), dump(1, call(1)))
    assert (cause.kind, cause.ranks) == ("silent", (2,))


def test_a_rank_that_ended_well_and_that_nobody_waits_for_is_no_fault() -> None:
    asked = [dump(rank, call(1, "completed"), reason="asked") for rank in (0, 1)]
    assert found(*asked, absent={2: Absence("left", "status 0")}).causes == ()


def test_codes_in_errors_are_explained() -> None:
    findings = found(dump(0, error="error code is 507015, EZ9999", error_stack=ELSEWHERE), dump(1), dump(2))
    assert [told.code for told in findings.explanations] == ["507015", "EZ9999"]
    assert findings.causes[0].mend == findings.explanations[0].mend


def test_dumps_of_no_job_and_of_two_jobs_are_refused() -> None:
    with pytest.raises(DiagnosticsError, match="There are no dumps"):
        found()
    with pytest.raises(DiagnosticsError, match="of 2 and 3 ranks"):
        found(dump(0), dump(1, world_size=2))


def test_where_no_majority_tells_all_are_named_each_with_its_call() -> None:
    sizes = {0: (8,), 1: (9,), 2: (10,)}
    for ranks in ((0, 1), (0, 1, 2)):
        dumps = [dump(rank, call(1, shape=sizes[rank]), world_size=len(ranks)) for rank in ranks]
        cause = first(*dumps)
        assert (cause.kind, cause.ranks) == ("shape", ranks)
        assert all(f"Float [{sizes[rank][0]}]" in cause.sentence for rank in ranks)
        assert cause.sentence.endswith("; no majority tells which of them is right.")


def test_without_a_majority_what_was_called_before_is_right() -> None:
    before = [call(number, "completed") for number in (1, 2)]
    cause = first(*(dump(rank, *before, call(3, shape=(8 + rank,))) for rank in range(3)))
    assert (cause.kind, cause.ranks) == ("shape", (1, 2))
    assert "but rank 0 all_reduce of Float [8]" in cause.sentence


def test_errors_that_show_a_majority_are_believed_before_rings_that_do_not() -> None:
    """Of a device in error the ring keeps the last calls back, but HCCL's error tells them."""
    told = [f"rank {rank}: HcclAllReduce #3 (count {8 + rank % 2}, float32, root 0)" for rank in range(3)]
    errors = [f"RuntimeError: EI0005: {told[rank]}; {told[other]}." for rank, other in enumerate((1, 0, 1))]
    known = (call(3), call(3, shape=(9,)))
    dumps = [dump(rank, *known[rank : rank + 1], error=error) for rank, error in enumerate(errors)]
    cause = first(*dumps)
    assert (cause.kind, cause.ranks) == ("shape", (1,))


@pytest.mark.parametrize("calls", [(), (call(1, "completed"),)], ids=["a silent ring", "the one before"])
def test_a_rank_that_raised_for_another_is_not_the_cause_beside_one_that_is_silent(
    calls: tuple[Call, ...],
) -> None:
    """Of a device in error the ring may tell nothing, so that its rank seems not to have come."""
    error = "RuntimeError: NPU error, error code is 507048: EI0002: notify wait ended early"
    dumps = [dump(0, call(1, "completed"), call(2), error=error), dump(2, *calls, error=error)]
    causes = found(*dumps, absent={1: Absence("silent", "no answer for 5 s")}).causes
    assert [(cause.kind, cause.ranks) for cause in causes] == [("silent", (1,))]


def test_beside_one_that_is_gone_without_a_word_a_rank_that_was_asked_to_end_is_no_cause() -> None:
    gone = {1: Absence("silent", "its process is gone"), 2: Absence("killed", "SIGTERM", 390.0)}
    cause = first(dump(0, call(1)), absent=gone)
    assert cause.kind == "silent"
    assert 1 in cause.ranks
    (alone,) = found(dump(0), dump(1), absent={2: gone[2]}).causes
    assert (alone.kind, alone.ranks) == ("killed", (2,))
