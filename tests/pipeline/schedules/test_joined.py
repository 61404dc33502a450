"""Whole backwards on the first stage: nothing but the split is lost."""

from __future__ import annotations

from hypothesis import given

from npu_plugins.pipeline.schedules import (
    Action,
    Costs,
    Kind,
    Schedule,
    add_communication,
    build_schedule,
    peak_activations,
    simulate,
    validate,
)
from npu_plugins.pipeline.schedules.joined import join_first_stage
from tests.pipeline.schedules.strategies import costs, training_schedules


def split_again(schedule: Schedule, rank: int) -> list[Action]:
    """The rank's compute with every whole backward of stage 0 written as two halves."""
    found: list[Action] = []
    for action in schedule.compute(rank):
        if action.kind is Kind.BACKWARD and action.stage == 0:
            found += [action._replace(kind=kind) for kind in (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)]
        else:
            found.append(action)
    return found


@given(training_schedules, costs)
def test_order_time_and_memory_stay(schedule: Schedule, costs: Costs) -> None:
    joined = join_first_stage(schedule)
    validate(add_communication(joined))
    assert simulate(joined, costs).time == simulate(schedule, costs).time
    assert peak_activations(joined) == peak_activations(schedule)
    for rank in range(schedule.ranks):
        own = joined.compute(rank)
        if schedule.splits_backward:
            assert split_again(joined, rank) == split_again(schedule, rank)
        else:
            assert own == schedule.compute(rank)
        for first, second in zip(own, own[1:], strict=False):
            halves = (first.kind, second.kind) == (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
            assert not (halves and first[1:3] == second[1:3] and first.stage == 0)


def test_zb_h1_on_rank_0_is_1f1b() -> None:
    """Its first rank puts nothing off, so that the split brought nothing there."""
    joined = join_first_stage(build_schedule("zb-h1", 4, 8))
    assert joined.compute(0) == build_schedule("1f1b", 4, 8).compute(0)
    assert joined.compute(1) == build_schedule("zb-h1", 4, 8).compute(1)
