"""Schedules that cannot run are refused, and the sentence says where."""

from __future__ import annotations

import dataclasses
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.pipeline.schedules import (
    Exchange,
    Placement,
    Schedule,
    ScheduleError,
    add_communication,
    build_schedule,
    loop,
    parse_steps,
    validate,
)
from tests.pipeline.schedules.strategies import schedules


def schedule_of(*lists: str, micro_batches: int = 1, forward_only: bool = False) -> Schedule:
    """A schedule of one stage per rank, written out."""
    return Schedule("mine", loop(len(lists)), micro_batches, tuple(map(parse_steps, lists)), forward_only)


FIRST, SECOND = "F0@0 [SA0@0>1 RG0@0<1] B0@0", "[RA0@1<0] F0@1 B0@1 [SG0@1>0]"


def test_a_schedule_written_by_hand_is_accepted() -> None:
    report = validate(schedule_of(FIRST, SECOND))
    assert report.peak_activations == (1, 1)
    assert report.transfers == (2, 2)
    assert report.peak == 1


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        ("F0@1", SECOND, "rank 0, step 0, F0@1: stage 1 is not on this rank"),
        ("F1@0", SECOND, "rank 0, step 0, F1@0: there are 1 micro-batches, counted from 0"),
        ("F0@0 F0@0", SECOND, "rank 0, step 1, F0@0: it has been done before"),
        ("B0@0", SECOND, "rank 0, step 0, B0@0: its forward has not been done yet"),
        ("F0@0 B0@0", SECOND, "step 1, B0@0: the gradient from stage 1 is not there yet"),
        ("F0@0 W0@0", SECOND, "step 1, W0@0: its input gradient has not been computed yet"),
        ("F0@0 [SA0@0>1 RG0@0<1] B0@0 B0@0", SECOND, "step 3, B0@0: its whole backward has been done before"),
        ("F0@0 [SA0@0>1 RG0@0<1] B0@0 W0@0", SECOND, "step 3, W0@0: its whole backward has been done before"),
        ("F0@0 [SA0@0>1 RG0@0<1] I0@0 B0@0", SECOND, "step 3, B0@0: its input gradient has been"),
        ("F0@0 [SA0@0>1 RG0@0<1] I0@0", SECOND, "rank 0 does F, I for micro-batch 0 at stage 0; it takes F"),
        ("", SECOND, "rank 0 does nothing for micro-batch 0 at stage 0"),
        ("[SA0@0>1] F0@0", SECOND, "step 0, SA0@0>1: it is sent before its forward has been done"),
        ("F0@0 [SA0@0>0]", SECOND, "step 1, SA0@0>0: stage 1 is on rank 1"),
        ("F0@0 [SG0@0>1]", SECOND, "step 1, SG0@0>1: there is no stage -1"),
        (FIRST, "F0@1", "rank 1, step 0, F0@1: the output of stage 0 is not there yet"),
        (FIRST, "[RA0@1<0] F0@1 [SG0@1>0] B0@1", "rank 1, step 2, SG0@1>0: it is sent before"),
        (FIRST, "[RA0@1<0] F0@1 B0@1", "from rank 1 to rank 0 is never sent, where the"),
        ("F0@0 [SA0@0>1 RG0@0<1] B0@0 [SA0@0>1]", SECOND, "step 3, SA0@0>1: it has been done before"),
        (
            "F0@0 [RG0@0<1] B0@0 [SA0@0>1]",
            SECOND,
            r"deadlocks, each rank waiting: rank 0 at step 1 \[RG0@0<1\]; rank 1 at step 0 \[RA0@1<0\]",
        ),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_with_its_place(first: str, second: str, sentence: str) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        validate(schedule_of(first, second))


def test_messages_in_another_order_than_they_are_received_are_refused() -> None:
    with pytest.raises(
        ScheduleError, match="message 0 from rank 0 to rank 1 is SA0@0>1, where the receiver has RA1@1<0"
    ):
        validate(
            schedule_of(
                "F0@0 [SA0@0>1] F1@0 [SA1@0>1 RG0@0<1] B0@0 [RG1@0<1] B1@0",
                "[RA1@1<0] [RA0@1<0] F0@1 B0@1 [SG0@1>0] F1@1 B1@1 [SG1@1>0]",
                micro_batches=2,
            )
        )


def test_two_ranks_that_both_send_first_deadlock_unless_they_post_together() -> None:
    alone = schedule_of(
        "F0@0 [SA0@0>1] F1@0 [SA1@0>1] [RG0@0<1] B0@0 [RG1@0<1] B1@0",
        "[RA0@1<0] F0@1 B0@1 [SG0@1>0] [RA1@1<0] F1@1 B1@1 [SG1@1>0]",
        micro_batches=2,
    )
    with pytest.raises(ScheduleError, match=r"rank 0 at step 3 \[SA1@0>1\]; rank 1 at step 3 \[SG0@1>0\]"):
        validate(alone)
    together = schedule_of(
        "F0@0 [SA0@0>1] F1@0 [SA1@0>1 RG0@0<1] B0@0 [RG1@0<1] B1@0",
        "[RA0@1<0] F0@1 B0@1 [SG0@1>0 RA1@1<0] F1@1 B1@1 [SG1@1>0]",
        micro_batches=2,
    )
    assert validate(together).peak_activations == (2, 1)


def test_an_evaluation_has_forwards_only() -> None:
    assert validate(schedule_of("F0@0", forward_only=True)).peak == 1
    with pytest.raises(ScheduleError, match="step 1, B0@0: an evaluation has forwards only"):
        validate(schedule_of("F0@0 B0@0", forward_only=True))


def test_the_largest_schedules_are_accepted() -> None:
    """More than half a million steps and transfers."""
    complete = add_communication(build_schedule("zb-v", ranks=64, micro_batches=512))
    report = validate(complete)
    assert (report.peak, sum(report.transfers)) == (64, 2 * 2 * 126 * 512)
    assert gc.isenabled()


@pytest.mark.parametrize("rank_of", [(0, 0, 1), (0, 2), (1, 1)])
def test_stages_unevenly_placed_are_refused(rank_of: tuple[int, ...]) -> None:
    with pytest.raises(ScheduleError, match="are no placement: give each rank from 0 equally many"):
        validate(Schedule("mine", Placement(rank_of), 1, ()))


def test_a_list_is_needed_for_every_rank() -> None:
    with pytest.raises(ScheduleError, match="has 1 lists of steps for 2 ranks: give one for each"):
        validate(dataclasses.replace(schedule_of(FIRST, SECOND), steps=(parse_steps(FIRST),)))


@given(schedules(), st.data())
def test_no_step_can_be_left_out_or_done_twice(schedule: Schedule, data: st.DataObject) -> None:
    complete = add_communication(schedule)
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    place = data.draw(st.integers(0, len(complete.steps[rank]) - 1))
    for times in (0, 2):
        steps = list(complete.steps[rank])
        steps[place : place + 1] = [steps[place]] * times
        broken = (*complete.steps[:rank], tuple(steps), *complete.steps[rank + 1 :])
        with pytest.raises(ScheduleError):
            validate(dataclasses.replace(complete, steps=broken))


@given(schedules(), st.data())
def test_no_compute_can_run_before_the_exchange_that_brings_its_input(
    schedule: Schedule, data: st.DataObject
) -> None:
    complete = add_communication(schedule)
    brought = [
        (rank, place, transfer)
        for rank, steps in enumerate(complete.steps)
        for place, step in enumerate(steps)
        if isinstance(step, Exchange)
        for transfer in step.transfers
        if transfer.kind.value[0] == "R"
    ]
    if not brought:
        return  # one rank
    rank, place, transfer = data.draw(st.sampled_from(brought))
    kinds = "F" if transfer.kind.value == "RA" else "BI"
    steps = list(complete.steps[rank])
    needs = next(
        index
        for index, step in enumerate(steps)
        if step[0] in list(kinds) and step[1:3] == (transfer.stage, transfer.micro_batch)
    )
    steps.insert(place, steps.pop(needs))
    broken = (*complete.steps[:rank], tuple(steps), *complete.steps[rank + 1 :])
    with pytest.raises(ScheduleError, match=f"rank {rank}, step {place}, "):
        validate(dataclasses.replace(complete, steps=broken))
