"""Times and bubbles: against the closed forms, and against a longest path found in another way."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.pipeline.schedules import (
    SCHEDULES,
    Costs,
    Kind,
    Schedule,
    ScheduleError,
    build_schedule,
    loop,
    parse_steps,
    peak_activations,
    simulate,
)
from npu_plugins.pipeline.schedules.closed_forms import activations, bubble
from tests.pipeline.schedules.strategies import costs, schedules

UNIT = Costs(Fraction(1), Fraction(1), Fraction(1), Fraction(0))


@pytest.mark.parametrize(
    ("name", "idle", "inside"),
    [
        ("gpipe", 9, 9),
        ("1f1b", 9, 9),
        ("interleaved", 4.5, 4.5),
        ("zb-h1", 3, 3),
        ("zb-v", 1.5, 0),
        ("dualpipe-v", 1.5, 1.5),
        ("eval", 3, 0),
    ],
)
def test_bubbles_of_four_ranks_at_equal_times(name: str, idle: float, inside: float) -> None:
    simulation = simulate(build_schedule(name, ranks=4, micro_batches=8), UNIT)
    assert (simulation.bubble, simulation.bubble_inside) == (idle, inside)
    assert [simulation.idle(rank) for rank in range(4)] == [idle] * 4
    assert simulation.time == idle + (8 if name == "eval" else 24)


@given(schedules(), costs)
def test_bubbles_are_the_closed_forms_where_those_are_exact(schedule: Schedule, times: Costs) -> None:
    placement = schedule.placement
    if schedule.forward_only and placement != loop(placement.ranks, placement.chunks):
        return  # the closed form of eval is for loops
    for each in (times._replace(transfer=Fraction(0)), UNIT):
        closed = bubble(schedule.name, placement.ranks, schedule.micro_batches, placement.chunks, each)
        if closed is not None:
            assert simulate(schedule, each).bubble == closed


@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v", "eval"])
def test_every_schedule_has_a_closed_form_at_equal_times(name: str, ranks: int) -> None:
    schedule = build_schedule(name, ranks, 2 * ranks)
    closed = bubble(name, ranks, 2 * ranks, schedule.placement.chunks, UNIT)
    assert closed is not None
    assert simulate(schedule, UNIT).bubble == closed


@given(schedules())
def test_activations_are_the_formula(schedule: Schedule) -> None:
    p, m, v = schedule.ranks, schedule.micro_batches, schedule.placement.chunks
    assert peak_activations(schedule) == tuple(activations(schedule.name, p, m, v, rank) for rank in range(p))


def test_activations_of_the_papers() -> None:
    def peaks(name: str) -> list[float]:
        return [float(peak) for peak in peak_activations(build_schedule(name, ranks=4, micro_batches=8))]

    assert peaks("gpipe") == [8, 8, 8, 8]
    assert peaks("1f1b") == [4, 3, 2, 1]
    assert peaks("interleaved") == [5.5, 4.5, 3.5, 2.5]
    assert peaks("zb-h1") == peaks("zb-v") == [4, 4, 4, 4]
    assert peaks("dualpipe-v") == [4.5, 4.5, 4.5, 4.5]
    assert peaks("eval") == [1, 1, 1, 1]


def longest_path(schedule: Schedule, per_stage: list[Costs]) -> dict[str, Fraction]:
    """When each action ends, by raising ends until every rank's order and every dependency holds."""
    rank_of, last = schedule.placement.rank_of, schedule.placement.stages - 1
    done: dict[str, Fraction] = {}
    gradient = {}  # "B or I" of a stage and micro-batch, whichever the schedule has
    for steps in schedule.steps:
        for kind, stage, i, _ in steps:
            if kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT):
                gradient[stage, i] = f"{kind.value}{i}@{stage}"
    changed = True
    while changed:
        changed = False
        for rank, steps in enumerate(schedule.steps):
            now = Fraction(0)
            for action in steps:
                kind, stage, i, _ = action
                each = per_stage[stage]
                before, source = f"F{i}@{stage}", stage
                if kind is Kind.FORWARD:
                    before, source = (f"F{i}@{stage - 1}", stage - 1) if stage else ("", stage)
                elif kind is not Kind.WEIGHT_GRADIENT and stage < last:
                    before, source = gradient[stage + 1, i], stage + 1
                elif kind is Kind.WEIGHT_GRADIENT:
                    before = gradient[stage, i]
                late = each.transfer if rank_of[source] != rank else Fraction(0)
                now = max(now, done.get(before, Fraction(0)) + late)
                now += {"F": each[0], "I": each[1], "W": each[2], "B": each[1] + each[2]}[kind.value]
                changed |= done.get(str(action)) != now
                done[str(action)] = now
    return done


@given(schedules(), st.data())
def test_actions_end_when_the_longest_path_to_them_ends(schedule: Schedule, data: st.DataObject) -> None:
    stages = schedule.placement.stages
    per_stage = data.draw(st.lists(costs, min_size=stages, max_size=stages))
    simulation = simulate(schedule, per_stage)
    assert {str(span.action): span.end for span in simulation.spans()} == longest_path(schedule, per_stage)


def test_costs_of_a_rank_are_divided_among_its_chunks() -> None:
    schedule = build_schedule("zb-v", 3, 5)
    times = Costs(Fraction(3), Fraction(4), Fraction(2), Fraction(1, 3))
    divided = Costs(Fraction(3, 2), Fraction(2), Fraction(1), Fraction(1, 3))
    assert simulate(schedule, times).ends == simulate(schedule, [divided] * 6).ends


def test_a_slow_stage_sets_the_pace_and_the_others_idle() -> None:
    simulation = simulate(build_schedule("1f1b", 2, 10), [Costs(1, 1, 1), Costs(2, 2, 2)])
    assert simulation.time == 1 + 10 * 6 + 2
    assert [simulation.idle(rank) for rank in (0, 1)] == [33, 3]
    assert simulation.bubble == 3


def test_transfers_delay_what_waits_for_them_but_not_within_a_rank() -> None:
    assert simulate(build_schedule("gpipe", 3, 4), Costs(transfer=Fraction(1, 2))).bubble == 6 + 4 * 0.5
    assert simulate(build_schedule("zb-v", 1, 4), Costs(transfer=5)).bubble == 0


def test_lists_that_wait_for_each_other_are_refused_with_where_each_rank_stands() -> None:
    steps = (parse_steps("F0@0 B1@0 F1@0 B0@0"), parse_steps("F0@1 B0@1 F1@1 B1@1"))
    with pytest.raises(
        ScheduleError, match=r"deadlocks.*rank 0 at B1@0 for B or I 1@1; rank 1 at F1@1 for F 1@0"
    ):
        simulate(Schedule("mine", loop(2), 2, steps))


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        ([Costs()] * 3, "3 costs for 2 stages: give one for each"),
        ([Costs(), Costs(1, -1, 1)], r"costs of stage 1 are \(1, -1, 1, 0\): no time can be negative"),
    ],
)
def test_costs_that_fit_no_stage_are_refused(times: list[Costs], sentence: str) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        simulate(build_schedule("1f1b", 2, 2), times)


@pytest.mark.parametrize("name", SCHEDULES)
def test_closed_forms_hold_for_64_ranks_and_512_micro_batches(name: str) -> None:
    """Each in well under a second; `benchmarks/schedules.py` shows how long."""
    schedule = build_schedule(name, ranks=64, micro_batches=512)
    v = schedule.placement.chunks
    assert simulate(schedule).bubble == bubble(name, 64, 512, v, UNIT)
    assert peak_activations(schedule) == tuple(activations(name, 64, 512, v, rank) for rank in range(64))
