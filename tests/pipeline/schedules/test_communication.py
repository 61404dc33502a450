"""The exchanges that are put into a schedule: that they suffice, block nobody and come at the right place."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.pipeline.schedules import (
    Action,
    Costs,
    Exchange,
    Kind,
    Schedule,
    ScheduleError,
    add_communication,
    build_schedule,
    count_transfers,
    peak_activations,
    simulate,
    validate,
)
from tests.pipeline.schedules.strategies import costs, schedules


def test_1f1b_on_two_ranks() -> None:
    complete = add_communication(build_schedule("1f1b", ranks=2, micro_batches=2))
    assert str(complete).splitlines() == [
        "rank 0: F0@0 [SA0@0>1] F1@0 [SA1@0>1 RG0@0<1] B0@0 [RG1@0<1] B1@0",
        "rank 1: [RA0@1<0] F0@1 [RA1@1<0] B0@1 [SG0@1>0] F1@1 B1@1 [SG1@1>0]",
    ]


def test_ranks_that_finish_together_send_to_each_other_in_one_exchange() -> None:
    """With F as long as B, rank 0's F2 and rank 1's B1 end at the same time."""
    first, second = str(add_communication(build_schedule("1f1b", 2, 3), Costs(2, 1, 1))).splitlines()
    assert "F2@0 [SA2@0>1 RG1@0<1] B1@0" in first
    assert "B1@1 [RA2@1<0 SG1@1>0] F2@1" in second


def test_what_arrives_during_an_action_is_posted_before_it_in_an_exchange_of_its_own() -> None:
    """Rank 1 sends the gradient of I1 at once; the next gradient comes while W0 runs, twice as long."""
    second = str(add_communication(build_schedule("zb-h1", 3, 6), Costs(1, 1, 2))).splitlines()[1]
    assert "I1@1 [SG1@1>0] [RG2@1<2] W0@1 [RA3@1<0] F3@1" in second


def test_an_action_does_not_wait_for_more_than_its_input() -> None:
    """On rank 1 the input of F3 and the gradient for I2, which runs after F3, come at the same time."""
    second = str(add_communication(build_schedule("zb-h1", 3, 6))).splitlines()[1]
    assert "W0@1 [RA3@1<0] [RG2@1<2] F3@1" in second


@given(schedules(), costs)
def test_no_receive_stands_in_an_exchange_behind_the_input_of_the_next_action(
    schedule: Schedule, times: Costs
) -> None:
    for steps in add_communication(schedule, times).steps:
        for place, step in enumerate(steps):
            following = next((each for each in steps[place:] if not isinstance(each, Exchange)), None)
            if following is None or not isinstance(step, Exchange):
                continue
            wanted = {"F": "RA", "B": "RG", "I": "RG"}.get(following.kind.value)
            names = [(each.kind.value, each.stage, each.micro_batch) for each in step.transfers]
            if (wanted, *following[1:3]) in names:
                behind = names[names.index((wanted, *following[1:3])) + 1 :]
                assert not [name for name in behind if name[0][0] == "R"]


def test_stages_next_to_each_other_on_a_rank_need_no_message() -> None:
    assert str(add_communication(build_schedule("zb-v", 1, 1))) == "rank 0: F0@0 F0@1 I0@1 W0@1 I0@0 W0@0"
    report = validate(add_communication(build_schedule("zb-v", 3, 5)))
    assert report.transfers == (4 * 5, 8 * 5, 4 * 5)


@given(schedules(), costs)
def test_the_validator_accepts_every_schedule_whatever_costs_it_was_ordered_by(
    schedule: Schedule, times: Costs
) -> None:
    complete = add_communication(schedule, times)
    report = validate(complete)
    assert report.peak_activations == peak_activations(schedule)
    assert report.transfers == count_transfers(schedule)
    assert [complete.compute(rank) for rank in range(schedule.ranks)] == list(schedule.steps)
    assert simulate(complete, times).ends == simulate(schedule, times).ends


Held = dict[tuple[str, int, int], str]
"""What a rank has: "output" and "gradient" (of the input) of a stage and micro-batch, its own or received."""


def play(schedule: Schedule) -> Iterator[tuple[Action, str]]:
    """Run with strings for tensors, over wires that keep the order of messages but not their names."""
    wires: dict[tuple[int, int], deque[str]] = defaultdict(deque)
    held: list[Held] = [{} for _ in range(schedule.ranks)]
    queues = [deque(steps) for steps in schedule.steps]
    sent = [False] * schedule.ranks  # whether the sends of the exchange at which a rank stands are under way
    while any(queues):
        left = sum(map(len, queues))
        for rank, queue in enumerate(queues):
            while queue:
                step = queue[0]
                if isinstance(step, Exchange):
                    if not sent[rank]:
                        _send(step, rank, held[rank], wires)
                    sent[rank] = not _receive(step, rank, held[rank], wires)
                    if sent[rank]:
                        break
                elif step.kind is not Kind.WEIGHT_GRADIENT:
                    yield step, _compute(step, held[rank], schedule.placement.stages)
                queue.popleft()
        assert sum(map(len, queues)) < left, "no rank can go on"


def _send(exchange: Exchange, rank: int, held: Held, wires: dict[tuple[int, int], deque[str]]) -> None:
    for kind, stage, i, peer in exchange.transfers:
        if kind.value[0] == "S":
            wires[rank, peer].append(held["output" if kind.value == "SA" else "gradient", stage, i])


def _receive(exchange: Exchange, rank: int, held: Held, wires: dict[tuple[int, int], deque[str]]) -> bool:
    """Take all that the exchange receives; False, taking nothing, while some of it has not been sent."""
    receives = [each for each in exchange.transfers if each.kind.value[0] == "R"]
    awaited = Counter(each.peer for each in receives)
    if any(len(wires[peer, rank]) < count for peer, count in awaited.items()):
        return False
    for kind, stage, i, peer in receives:
        what = ("output", stage - 1, i) if kind.value == "RA" else ("gradient", stage + 1, i)
        held[what] = wires[peer, rank].popleft()
    return True


def _compute(action: Action, held: Held, stages: int) -> str:
    kind, stage, i, _ = action
    if kind is Kind.FORWARD:
        held["output", stage, i] = f"{held['output', stage - 1, i]}>{stage}" if stage else f"batch {i}>0"
        return held["output", stage, i]
    came = held["gradient", stage + 1, i] if stage + 1 < stages else held["output", stage, i]
    held["gradient", stage, i] = f"{came}<{stage}"
    return held["gradient", stage, i]


@given(schedules(), costs)
def test_every_action_gets_what_it_needs_by_the_order_of_messages(schedule: Schedule, times: Costs) -> None:
    stages = schedule.placement.stages
    ran = 0
    for (kind, stage, i, _), value in play(add_communication(schedule, times)):
        path = [f"batch {i}"] + [f">{s}" for s in range(stage + 1 if kind is Kind.FORWARD else stages)]
        if kind is not Kind.FORWARD:
            path += [f"<{s}" for s in reversed(range(stage, stages))]
        assert value == "".join(path)
        ran += 1
    assert ran == stages * schedule.micro_batches * (1 if schedule.forward_only else 2)


@given(schedules(), st.data())
def test_costs_can_be_given_for_each_stage(schedule: Schedule, data: st.DataObject) -> None:
    stages = schedule.placement.stages
    validate(add_communication(schedule, data.draw(st.lists(costs, min_size=stages, max_size=stages))))


def test_exchanges_are_put_in_once() -> None:
    with pytest.raises(ScheduleError, match="already holds exchanges"):
        add_communication(add_communication(build_schedule("1f1b", 2, 2)))


def test_transfers_cannot_be_ordered_by_actions_that_take_no_time() -> None:
    with pytest.raises(ScheduleError, match="compute takes time"):
        add_communication(build_schedule("1f1b", 2, 2), Costs(1, 0, 1))
