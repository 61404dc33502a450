"""Only a wait that was seen to last reaches its limit: no computation, no progress and no pause does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta

import pytest

from npu_plugins.diagnostics.hang.recorder import Pending
from npu_plugins.diagnostics.hang.stacks import Spot
from npu_plugins.diagnostics.hang.waiting import WaitClock

LIMIT = 20.0
FRAME = sys._getframe()


def pending(record: int) -> Pending:
    return Pending("hccl", record, "0", record + 1, False, timedelta(minutes=30))


def first_alarm(
    calls: Callable[[float], tuple[Pending, ...]],
    spots: Callable[[float], Spot | None],
    times: list[float],
) -> float | None:
    """The time of the first look that says the wait is too long; None if no look does."""
    now = [0.0]
    clock = WaitClock(lambda timeout, ring: LIMIT, lambda: calls(now[0]), lambda: spots(now[0]))
    for now[0] in times:
        if clock.look(now[0]):
            return now[0]
    return None


def every_second(until: int) -> list[float]:
    return [float(second) for second in range(until)]


def nothing(now: float) -> None:
    return None


def no_calls(now: float) -> tuple[Pending, ...]:
    return ()


def test_one_call_that_does_not_end_reaches_the_limit_and_no_more_than_a_look_later() -> None:
    found = first_alarm(lambda now: (pending(7),) if now >= 3 else (), nothing, every_second(60))
    assert found is not None and 3 + LIMIT <= found <= 3 + LIMIT + 5


def test_calls_that_end_one_after_the_other_never_do_however_long_the_program_runs() -> None:
    def calls(now: float) -> tuple[Pending, ...]:
        return pending(int(now) // 15), pending(int(now) // 15 + 1)

    assert first_alarm(calls, nothing, every_second(600)) is None


def test_a_computation_is_no_wait() -> None:
    assert first_alarm(no_calls, nothing, every_second(600)) is None


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_main_thread_that_sleeps_in_one_call_reaches_the_limit(by_itself: bool) -> None:
    found = first_alarm(no_calls, lambda now: Spot(FRAME, 8, by_itself, 100), every_second(60))
    assert found is not None and LIMIT <= found <= LIMIT + 2


def test_a_loop_of_waits_at_one_line_does_not_as_each_of_them_woke() -> None:
    assert first_alarm(no_calls, lambda now: Spot(FRAME, 8, False, int(now)), every_second(600)) is None


def test_where_nobody_counts_how_often_a_thread_slept_a_loop_is_not_taken_for_one_wait() -> None:
    assert first_alarm(no_calls, lambda now: Spot(FRAME, 8, False, -1), every_second(600)) is None


def test_a_wait_for_other_places_starts_anew() -> None:
    def spots(now: float) -> Spot:
        return Spot(FRAME, int(now) // 15, True, 100)

    assert first_alarm(no_calls, spots, every_second(600)) is None


@pytest.mark.parametrize("by_ring", [True, False])
def test_time_in_which_the_process_was_stopped_does_not_count(by_ring: bool) -> None:
    times = [float(10 + second + 3600 * (second // 10)) for second in range(100)]
    found = first_alarm(
        (lambda now: (pending(7),)) if by_ring else no_calls,
        nothing if by_ring else (lambda now: Spot(FRAME, 8, True, 100)),
        times,
    )
    assert found is None
