"""A preflight on ranks: ready without a fault, with one the same report everywhere, which names the rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from ds_configs.parallel import ParallelConfig
from npu_plugins.diagnostics.preflight import Report
from tests.accelerator.conftest import KeptWorld
from tests.diagnostics.preflight import cases
from tests.diagnostics.preflight.cases import Case, configuration, fly
from tests.harness import Outcome, World
from tests.harness.npu import why_no_npu
from tests.harness.pool import RankPool

PRELOADED = ("npu_plugins.diagnostics.preflight", "npu_plugins.comm", "tests.diagnostics.preflight.cases")
"""What every rank would import."""
LAYOUTS = [ParallelConfig(dp=4), ParallelConfig(tp=2, dp=2), ParallelConfig(tp=2, pp=2)]


@pytest.fixture(scope="module", params=["gloo", "hccl"])
def four_ranks(rank_pool: RankPool, request: pytest.FixtureRequest) -> Iterator[KeptWorld]:
    reason = why_no_npu() if request.param == "hccl" else None
    if reason:
        pytest.skip(reason)
    rank_pool.preload(*PRELOADED)
    with rank_pool.world(4, request.param) as world:
        yield KeptWorld(world)


def report_of(world: KeptWorld | World, case: Case) -> Report:
    """Return the report that all ranks ended with, and that rank 0 told."""
    results = world.run(fly, case)
    assert all(report == results[0][0] for report, _, _ in results), "all ranks know the same"
    assert [told for _, told, _ in results] == [True, False, False, False]
    return results[0][0]


def test_ranks_without_a_fault_are_ready(four_ranks: KeptWorld) -> None:
    for config in LAYOUTS:
        report = report_of(four_ranks, Case(config, facts=tuple(configuration())))
        assert report.findings == [], report.text()
        assert list(report.lines) == ["meeting", "settings", "collectives", "links", "clocks"]
        links = report.figures["links"]
        assert len(links) == (6 if config.dp == 4 else 4)
        assert all(link["gbps"] > 0 and link["latency_s"] > 0 for link in links)


def test_one_rank_with_another_configuration(four_ranks: KeptWorld) -> None:
    other = configuration(zero_optimization={"stage": 3, "overlap_comm": True})
    case = Case(
        LAYOUTS[0], facts=tuple(configuration()), at_fault=2, otherwise=lambda _, facts: swap(facts, other)
    )
    (finding,) = report_of(four_ranks, case).findings
    assert (finding.kind, finding.level, finding.ranks) == ("different", "error", (2,))
    assert finding.what.startswith("ds_config: zero_optimization.stage is 3 on rank 2 (host ")
    assert "but 2 on ranks 0, 1, 3 (host " in finding.what


def swap(facts: list, others: list) -> None:
    """Give a rank other facts."""
    facts[:] = others


def test_a_wrong_share_in_a_collective(four_ranks: KeptWorld) -> None:
    case = Case(ParallelConfig(dp=4), at_fault=1, otherwise=corrupt)
    findings = report_of(four_ranks, case).findings
    assert [(each.kind, each.level, each.ranks) for each in findings] == [("wrong", "error", (1,))]
    assert "at element 7 of the share of rank 1" in findings[0].what


def corrupt(flight: object, facts: list) -> None:
    """Let this rank give a number that is not the known one, once."""
    from npu_plugins.diagnostics.preflight import collectives

    usual, calls = collectives.share, []

    def share(rank, device):  # type: ignore[no-untyped-def]
        numbers = usual(rank, device)
        calls.append(rank)
        if len(calls) == 5:  # after the expected ones of four ranks
            numbers[7] += 1
            collectives.share = usual
        return numbers

    collectives.share = share


def test_a_slow_rank_and_a_slow_link(four_ranks: KeptWorld) -> None:
    slow = Case(LAYOUTS[0], at_fault=3, otherwise=slow_down(None), latency_repeats=3)
    (finding,) = report_of(four_ranks, slow).findings
    assert (finding.kind, finding.level, finding.ranks) == ("slow", "error", (3,))
    assert "rank 3 (host " in finding.what and "is slow on all of its 3 links" in finding.what
    slow = replace(slow, at_fault=0, otherwise=slow_down(2))
    (finding,) = report_of(four_ranks, slow).findings
    assert (finding.kind, finding.level, finding.ranks) == ("slow", "error", (0, 2))


def slow_down(other: int | None):  # type: ignore[no-untyped-def]
    """Return what makes exchanges with one rank, or all, take 25 ms longer in the next preflight."""

    def otherwise(flight: cases.Preflight, facts: list) -> None:
        from npu_plugins.diagnostics.preflight import links

        usual = links.synchronize

        def measure(mesh, link, size):  # type: ignore[no-untyped-def]
            def synchronize(device):  # type: ignore[no-untyped-def]
                time.sleep(0.0125)  # together beyond what a busy host excuses
                usual(device)

            if other is None or other in (link.low, link.high):
                links.synchronize = synchronize
            try:
                return links_measure(mesh, link, size)
            finally:
                links.synchronize = usual

        links_measure = links.measure
        links.measure = measure
        finish = flight.finish

        def put_back():  # type: ignore[no-untyped-def]
            links.measure = links_measure
            return finish()

        flight.finish = put_back  # type: ignore[method-assign]

    return otherwise


def test_clocks_of_hosts_apart(four_ranks: KeptWorld) -> None:
    case = Case(LAYOUTS[1], hosts=2, clocks=(0.0, 0.0, 7.5, 7.5), measure=False)
    report = report_of(four_ranks, case)
    (finding,) = report.findings
    assert (finding.kind, finding.level, finding.ranks) == ("clock", "warning", (2,))
    assert "clock of host host1 (rank 2) is 7." in finding.what and "s ahead of" in finding.what
    assert abs(report.figures["clocks"]["2"]["seconds"] - 7.5) < 0.5
    strict = report_of(four_ranks, replace(case, settings={"strict": True}))
    assert [each.level for each in strict.findings] == ["error"]


def test_other_degrees_stop_before_groups_are_made(four_ranks: KeptWorld) -> None:
    def otherwise(flight: cases.Preflight, facts: list) -> None:
        flight.topology = cases_topology()

    report = report_of(four_ranks, Case(LAYOUTS[0], at_fault=1, otherwise=otherwise))
    assert [(each.kind, each.ranks) for each in report.findings] == [("different", (1,))]
    assert "mesh: the layout is tp 4, dp 1, pp 1, ep 1 on rank 1" in report.findings[0].what
    assert "collectives" not in report.lines


def cases_topology():  # type: ignore[no-untyped-def]
    from npu_plugins.comm import Topology

    return Topology(ParallelConfig(tp=4))


def threads_after(case: Case) -> list[str]:
    """On a rank: the threads that a preflight leaves."""
    fly(case)
    return [each.name for each in threading.enumerate() if each.name == "preflight"]


def sleeps(seconds: float):  # type: ignore[no-untyped-def]
    """Return what makes a rank come so much later."""
    return lambda flight, facts: time.sleep(seconds)


GLOO, HCCL = "gloo", "hccl"
FAILS, SLEEPS, DIES = (
    cases.raise_in_the_collectives,
    cases.sleep_in_the_collectives,
    cases.kill_in_the_collectives,
)
ALONE = {  # name: backend, function of each rank, case; those that take long come first
    "first is early": (GLOO, cases.with_little_grace, Case(LAYOUTS[0], 3.0, at_fault=0, otherwise=FAILS)),
    "first does not come": (GLOO, fly, Case(LAYOUTS[0], 1.0, at_fault=0, otherwise=sleeps(2))),
    "does not come": (GLOO, fly, Case(LAYOUTS[0], 1.5, at_fault=1, otherwise=sleeps(3))),
    "fails": (GLOO, fly, Case(LAYOUTS[0], 2.0, at_fault=2, otherwise=FAILS)),
    "never enters": (GLOO, fly, Case(LAYOUTS[0], 2.0, at_fault=2, otherwise=SLEEPS)),
    "killed gloo": (GLOO, fly, Case(LAYOUTS[0], 30.0, at_fault=2, otherwise=DIES)),
    "killed hccl": (HCCL, fly, Case(LAYOUTS[0], 30.0, at_fault=2, otherwise=DIES)),
    "threads": (GLOO, threads_after, Case(LAYOUTS[0])),
}
AT_ONCE = 3
"""Worlds side by side, beside the one of `four_ranks`: most of their time is waiting."""


@pytest.fixture(scope="module")
def alone(rank_pool: RankPool) -> dict[str, list[Outcome]]:
    """What became of the ranks of each case, in a world of its own: the fault may leave it unusable."""
    rank_pool.preload(*PRELOADED)
    found = {}
    names = [name for name in ALONE if ALONE[name][0] == GLOO or not why_no_npu()]
    for first in range(0, len(names), AT_ONCE):
        with ExitStack() as stack:
            batch = names[first : first + AT_ONCE]
            worlds = {name: stack.enter_context(rank_pool.world(4, ALONE[name][0])) for name in batch}
            for name, world in worlds.items():
                world.grace = 20.0
                world.begin(*ALONE[name][1:])
            for name, world in worlds.items():
                found[name] = world.collect(60.0)
    return found


def values(outcomes: list[Outcome]) -> list[Any]:
    """Return what the ranks returned, which all did."""
    assert all(outcome.ok for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("fails", "failed", "rank 2 (host {}) failed in the phase collectives: OutOf"),
        ("never enters", "stuck", "rank 2 (host {}) did not get through the phase collectives"),
    ],
)
def test_a_rank_that_others_wait_for(
    name: str, kind: str, words: str, alone: dict[str, list[Outcome]]
) -> None:
    results = values(alone[name])
    assert all(seconds < 12 for _, _, seconds in results), "within the limit and 10 s"
    report = results[0][0]
    assert [(each.kind, each.ranks) for each in report.findings] == [(kind, (2,))]
    assert report.findings[0].what.startswith(words.format(cases.Place.here(0).host))
    assert [each[0] for each in results] == [report] * 4


def test_the_first_rank_is_done_early(alone: dict[str, list[Outcome]]) -> None:
    """It waits for the others' words as long as they may work, though it fails itself or has less to do."""
    for failing, ready in values(alone["first is early"]):
        assert [(each.kind, each.ranks) for each in failing.findings] == [("failed", (0,))]
        assert ready.findings == []


@pytest.mark.parametrize("at", [GLOO, HCCL])
def test_a_rank_that_is_killed(at: str, alone: dict[str, list[Outcome]]) -> None:
    if f"killed {at}" not in alone:
        pytest.skip(str(why_no_npu()))
    outcomes = alone[f"killed {at}"]
    assert [outcome.kind for outcome in outcomes] == ["returned", "returned", "died", "returned"]
    for outcome in (outcomes[0], outcomes[1], outcomes[3]):
        report, _, seconds = outcome.value
        assert [(each.kind, each.ranks) for each in report.findings] == [("lost", (2,))]
        assert "ended in the middle of the phase collectives" in report.findings[0].what
        assert seconds < 10, "it is seen at once, not at the limit"


def test_a_rank_that_does_not_come(alone: dict[str, list[Outcome]]) -> None:
    results = values(alone["does not come"])
    report = results[0][0]
    assert [(each.kind, each.ranks) for each in report.findings] == [("missing", (1,))]
    assert report.findings[0].what.startswith("rank 1 (host ")
    assert "did not come within 1.5 s; 3 of 4 ranks did" in report.findings[0].what
    assert results[1][0] == report, "who comes too late is told, too"


def test_the_first_rank_does_not_come(alone: dict[str, list[Outcome]]) -> None:
    for report, told, _ in values(alone["first does not come"])[1:]:
        assert [(each.kind, each.ranks) for each in report.findings] == [("lost", (0,))]
        assert "rank 0 has not answered for 1 s" in report.findings[0].what
        assert told, "each says it, since who tells for all is missing"


def test_no_thread_stays(alone: dict[str, list[Outcome]]) -> None:
    assert values(alone["threads"]) == [[]] * 4
