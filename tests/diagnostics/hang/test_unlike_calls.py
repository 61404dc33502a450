"""What HCCL's EI0005 tells of calls that do not fit each other, as causes with the ranks at fault."""

from __future__ import annotations

import pytest

from npu_plugins.diagnostics.hang.analysis import analyse
from npu_plugins.diagnostics.hang.dump import Group, RankDump
from npu_plugins.diagnostics.hang.findings import Absence
from npu_plugins.diagnostics.hang.unlike_calls import find_unlike_calls

PLAIN = "HcclAllReduce #15 (count 2, float32, sum, root 0)"


def dump(rank: int, group: tuple[int, ...], own: str, place: int, other: str) -> RankDump:
    """The dump of a rank whose error tells its own call and one at another place of the group."""
    error = (
        "RuntimeError: NPU error, error code is 507049. EI0005: the ranks of communicator 'g' do not agree "
        f"on their operation: rank {group.index(rank)}: {own}; rank {place}: {other}."
    )
    groups = (Group("0", "world", (0, 1, 2, 3)), Group("1", "dp", group))
    return RankDump(rank, 4, "a", 1, "exception", 5.0 + rank, error=error, groups=groups)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        ("HcclAllReduce #15 (count 3, float32, sum, root 0)", "shape", "AllReduce of 3 float32, sum"),
        ("HcclAllReduce #15 (count 2, int32, sum, root 0)", "dtype", "AllReduce of 2 int32, sum"),
        ("HcclAllReduce #15 (count 2, float32, max, root 0)", "op", "AllReduce of 2 float32, max"),
        ("HcclBroadcast #15 (count 3, float32, root 0)", "op", "Broadcast of 3 float32, root 0"),
        ("HcclAllReduce #15 (count 2, float32, sum, root 1)", "root", "root 1"),
    ],
)
def test_the_rank_that_differs_from_most_is_named(call: str, kind: str, words: str) -> None:
    """Ranks in the error are places in the group: place 1 of this one is rank 2 of the job."""
    group = (0, 2, 3)
    dumps = {
        0: dump(0, group, PLAIN, 1, call),
        2: dump(2, group, call, 0, PLAIN),
        3: dump(3, group, PLAIN, 1, call),
    }
    (cause,) = find_unlike_calls(dumps)
    assert (cause.kind, cause.ranks) == (kind, (2,))
    assert cause.sentence.startswith("Rank 2 called ")
    assert words in cause.sentence
    assert "but ranks 0, 3 AllReduce of 2 float32, sum, root 0" in cause.sentence


def test_of_two_ranks_none_is_right() -> None:
    other = "HcclAllReduce #15 (count 3, float32, sum, root 0)"
    (cause,) = find_unlike_calls({0: dump(0, (0, 1), PLAIN, 1, other), 1: dump(1, (0, 1), other, 0, PLAIN)})
    assert (cause.kind, cause.ranks) == ("shape", (0, 1))
    assert "AllReduce of 2 float32" in cause.sentence and "AllReduce of 3 float32" in cause.sentence
    assert cause.sentence.endswith("; no majority tells which of them is right.")


def test_without_such_an_error_nothing_is_found() -> None:
    assert not find_unlike_calls({0: RankDump(0, 2, "a", 1, "timeout", 1.0)})


def test_whoever_left_is_what_the_others_errors_miss() -> None:
    """Where the device in error keeps back which calls wait, the errors and the absence are all there is."""
    error = "RuntimeError: NPU error, error code is 507048: EI0002: notify wait ended early"
    dumps = {rank: RankDump(rank, 3, "a", 1, "exception", 5.0, error=error) for rank in (0, 2)}
    cause = analyse(dumps, {1: Absence("left", "status 0")}).causes[0]
    assert (cause.kind, cause.ranks) == ("left", (1,))
    assert cause.sentence == (
        "Ranks 0, 2 missed another rank in a call. Rank 1 ended (status 0), as if all was done."
    )
