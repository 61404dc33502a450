"""Whole backwards where no other rank waits for the input gradient: nothing but the split is lost."""

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
from npu_plugins.pipeline.schedules.joined import join_halves
from tests.pipeline.schedules.strategies import costs, training_schedules


def inner(schedule: Schedule) -> set[int]:
    """The stages whose input gradient no other rank gets."""
    rank_of = schedule.placement.rank_of
    return {0, *(stage for stage in range(1, len(rank_of)) if rank_of[stage] == rank_of[stage - 1])}


def split_again(schedule: Schedule, rank: int) -> list[Action]:
    """The rank's compute with every whole backward of its `inner` stages written as two halves."""
    found: list[Action] = []
    for action in schedule.compute(rank):
        if action.kind is Kind.BACKWARD and action.stage in inner(schedule):
            found += [action._replace(kind=kind) for kind in (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)]
        else:
            found.append(action)
    return found


@given(training_schedules, costs)
def test_order_time_and_memory_stay(schedule: Schedule, costs: Costs) -> None:
    joined = join_halves(schedule)
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
            assert not (halves and first[1:3] == second[1:3] and first.stage in inner(schedule))


def test_zb_h1_on_rank_0_is_1f1b() -> None:
    """Its first rank puts nothing off, so that the split brought nothing there."""
    joined = join_halves(build_schedule("zb-h1", 4, 8))
    assert joined.compute(0) == build_schedule("1f1b", 4, 8).compute(0)
    assert joined.compute(1) == build_schedule("zb-h1", 4, 8).compute(1)


def test_the_turn_of_a_v_is_whole() -> None:
    """Until the pipeline drains, the last rank of ZB-V splits only what rank 0 waits for."""
    joined = join_halves(build_schedule("zb-v", 2, 8)).compute(1)
    split = {(action.stage, action.micro_batch) for action in joined if action.kind is Kind.WEIGHT_GRADIENT}
    assert split == {(1, micro_batch) for micro_batch in range(8)} | {(2, 7)}
