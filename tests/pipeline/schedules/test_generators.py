"""What each schedule does, spelled out for small pipelines, and what it refuses."""

from __future__ import annotations

import pytest

from npu_plugins.pipeline.schedules import (
    Schedule,
    ScheduleError,
    build_schedule,
    evaluation,
    loop,
    parse_steps,
    vee,
)


def spelled(schedule: Schedule) -> list[str]:
    """One line per rank; the stage, which is the rank, is left out where a rank has one."""
    lines = [" ".join(map(str, steps)) for steps in schedule.steps]
    if schedule.placement.chunks == 1:
        return [line.replace(f"@{rank}", "") for rank, line in enumerate(lines)]
    return lines


def test_gpipe_runs_all_forwards_then_all_backwards_from_the_last() -> None:
    assert spelled(build_schedule("gpipe", ranks=2, micro_batches=3)) == ["F0 F1 F2 B2 B1 B0"] * 2


def test_1f1b_alternates_after_a_warm_up_of_the_ranks_that_follow() -> None:
    assert spelled(build_schedule("1f1b", ranks=3, micro_batches=4)) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_1f1b_of_fewer_micro_batches_than_ranks() -> None:
    assert spelled(build_schedule("1f1b", ranks=3, micro_batches=1)) == ["F0 B0"] * 3


def test_interleaved_takes_groups_of_p_micro_batches_through_chunk_after_chunk() -> None:
    first, last = spelled(build_schedule("interleaved", ranks=2, micro_batches=4, virtual_stages=2))
    assert first == ("F0@0 F1@0 F0@2 F1@2 F2@0 B0@2 F3@0 B1@2 F2@2 B0@0 F3@2 B1@0 B2@2 B3@2 B2@0 B3@0")
    assert last == ("F0@1 F1@1 F0@3 B0@3 F1@3 B1@3 F2@1 B0@1 F3@1 B1@1 F2@3 B2@3 F3@3 B3@3 B2@1 B3@1")


def test_zb_h1_puts_off_weight_gradients_by_the_rank() -> None:
    assert spelled(build_schedule("zb-h1", ranks=3, micro_batches=4)) == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]


def test_zb_v_on_two_ranks() -> None:
    assert spelled(build_schedule("zb-v", ranks=2, micro_batches=3)) == [
        "F0@0 F1@0 F2@0 F0@3 I0@3 W0@3 F1@3 I1@3 W1@3 I0@0 W0@0 F2@3 I2@3 W2@3 I1@0 W1@0 I2@0 W2@0",
        "F0@1 F0@2 F1@1 F1@2 I0@2 W0@2 F2@1 I0@1 W0@1 F2@2 I1@2 W1@2 I1@1 I2@2 I2@1 W1@1 W2@2 W2@1",
    ]


def test_dualpipe_v_on_one_rank_pairs_a_forward_of_one_chunk_with_a_backward_of_the_other() -> None:
    [only] = spelled(build_schedule("dualpipe-v", ranks=1, micro_batches=3))
    assert only == "F0@0 F0@1 F1@0 B0@1 F1@1 B0@0 F2@0 B1@1 F2@1 B1@0 B2@1 I2@0 W2@0"


@pytest.mark.parametrize("placement", [loop(3), loop(3, 2), vee(3)], ids=["plain", "loop", "V"])
def test_eval_runs_forwards_only_on_the_placement_of_training(placement) -> None:
    schedule = evaluation(placement, micro_batches=4)
    assert schedule.forward_only
    for rank, steps in enumerate(schedule.steps):
        expected = {f"F{i}@{stage}" for stage in placement.stages_of(rank) for i in range(4)}
        assert {str(step) for step in steps} == expected
        assert len(steps) == len(expected)


def test_stages_lie_on_a_loop_or_on_a_v() -> None:
    assert loop(3, 2).rank_of == (0, 1, 2, 0, 1, 2)
    assert vee(3).rank_of == (0, 1, 2, 2, 1, 0)
    assert vee(3).stages_of(1) == (1, 4)
    assert vee(3).chunk_of(4) == 1
    assert build_schedule("1f1b", 3, 3).placement == loop(3)
    assert build_schedule("interleaved", 3, 3).placement == loop(3, 2)
    assert build_schedule("zb-v", 3, 3).placement == build_schedule("dualpipe-v", 3, 6).placement == vee(3)


def test_the_string_form_of_a_schedule_can_be_read_back() -> None:
    schedule = build_schedule("zb-h1", 2, 2)
    lines = str(schedule).splitlines()
    assert lines[0] == "rank 0: F0@0 F1@0 I0@0 W0@0 I1@0 W1@0"
    assert tuple(parse_steps(line.split(": ")[1]) for line in lines) == schedule.steps


def test_a_schedule_knows_whether_it_splits_the_backward() -> None:
    split = {
        name
        for name in ("gpipe", "1f1b", "zb-h1", "zb-v", "dualpipe-v")
        if build_schedule(name, 2, 4).splits_backward
    }
    assert split == {"zb-h1", "zb-v", "dualpipe-v"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("zb-x", 4, 8), "there is no schedule 'zb-x'; choose one of gpipe, 1f1b, interleaved, zb-h1, zb-v"),
        (("1f1b", 0, 8), "ranks=0: give a whole number, 1 or more"),
        (("zb-v", 4, 0), "micro_batches=0: give a whole number, 1 or more"),
        (("gpipe", 4, True), "micro_batches=True: give a whole number"),
        (("eval", 0, 4), "ranks=0: give a whole number, 1 or more"),
        (("interleaved", 4, 8, 0), "virtual_stages=0: give a whole number, 1 or more"),
        (("interleaved", 4, 6), "needs micro-batches in multiples of 4, not 6: use 4 or 8"),
        (("interleaved", 4, 3), "needs micro-batches in multiples of 4, not 3: use 4$"),
        (("interleaved", 4, 8, 1), "interleaved with virtual_stages 1 is 1f1b"),
        (("dualpipe-v", 4, 7), "on 4 ranks needs 8 micro-batches or more, not 7"),
        (("1f1b", 4, 8, 2), "1f1b has 1 stage on each rank, not 2"),
        (("zb-v", 4, 8, 3), "zb-v has 2 stages on each rank, not 3"),
    ],
)
def test_what_a_schedule_cannot_do_is_refused_with_what_it_needs(arguments: tuple, sentence: str) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        build_schedule(*arguments)
