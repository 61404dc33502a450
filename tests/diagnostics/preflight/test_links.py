"""Which links are measured when, and which of them are called slow."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import Topology
from npu_plugins.diagnostics.preflight import slow
from npu_plugins.diagnostics.preflight.links import Link, Timing, all_links
from npu_plugins.diagnostics.preflight.pairs import ALL_PAIRS, rounds
from npu_plugins.diagnostics.preflight.slow import TRIES, Limits
from npu_plugins.diagnostics.preflight.verdicts import LinkWatch

LIMITS = Limits(3.0, 4 << 20)
SPEED, LATENCY = 10e9, 20e-6


@given(st.integers(1, 70))
def test_a_round_has_each_place_once_and_all_pairs_come_once(ranks: int) -> None:
    found = rounds(ranks)
    for pairs in found:
        places = [place for pair in pairs for place in pair]
        assert len(places) == len(set(places))
    pairs = [pair for together in found for pair in together]
    assert len(pairs) == len(set(pairs))
    assert all(low < high for low, high in pairs)
    if ranks <= ALL_PAIRS:
        assert set(pairs) == set(combinations(range(ranks), 2))
        assert len(found) <= ranks, "n - 1 rounds of an even number, n of an odd one"
    else:
        assert {place for pair in pairs for place in pair} == set(range(ranks))
        assert len(found) <= 4 * ranks.bit_length(), "few, however many ranks"


@given(st.builds(ParallelConfig, st.integers(1, 4), st.integers(1, 3), st.integers(1, 4)))
def test_links_stay_within_groups_and_reach_every_rank(config: ParallelConfig) -> None:
    topology = Topology(config)
    for together in all_links(topology):
        ranks = [rank for link in together for rank in (link.low, link.high)]
        assert len(ranks) == len(set(ranks))
        for link in together:
            assert link.high in topology.ranks(link.axis, link.low)
    count = sum(len(together) for together in all_links(topology))
    expected = sum(
        len(topology.groups(axis)) * topology.size(axis) * (topology.size(axis) - 1) // 2
        for axis in ("tp", "dp", "pp")
    )
    assert count == expected


def flight(config: ParallelConfig, time_of, machines: dict[int, str] | None = None):  # type: ignore[no-untyped-def]
    """Return the findings of a watch whose links take `time_of(link, again)`, and how often it measured."""
    watch = LinkWatch({}, LIMITS)
    watch.machines = machines or dict.fromkeys(range(config.world_size), "host")
    order = [link for together in all_links(Topology(config)) for link in together]
    again = 0
    while True:
        told = {rank: [] for rank in range(config.world_size)}
        for link in order:
            for rank in (link.low, link.high):
                told[rank].append([*link, *time_of(Link(*link), again)])
        outcome = watch.judge(told, again)
        if not outcome.next:
            return list(outcome.findings), again
        order, again = outcome.next, again + 1


def usual(link: Link, again: int) -> Timing:
    """What a link without a fault takes."""
    return Timing(LIMITS.size / SPEED, LATENCY)


meshes = st.sampled_from(
    [ParallelConfig(dp=4), ParallelConfig(tp=2, dp=2), ParallelConfig(tp=4, pp=2), ParallelConfig(2, 2, 2)]
)


@given(meshes, st.data())
def test_one_slow_link_is_named_and_no_other(config: ParallelConfig, data: st.DataObject) -> None:
    links = [link for together in all_links(Topology(config)) for link in together]
    bad = data.draw(st.sampled_from(links))
    factor = data.draw(st.floats(10, 1000))

    def time_of(link: Link, again: int) -> Timing:
        right = usual(link, again)
        return right._replace(seconds=right.seconds * factor) if link == bad else right

    findings, again = flight(config, time_of)
    assert [(finding.kind, finding.ranks) for finding in findings] == [("slow", (bad.low, bad.high))]
    assert f"along {bad.axis}" in findings[0].what
    assert again == TRIES, "it was measured again before it was named"


@given(meshes, st.data())
def test_one_slow_rank_is_named_in_place_of_its_links(config: ParallelConfig, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, config.world_size - 1))

    def time_of(link: Link, again: int) -> Timing:
        right = usual(link, again)
        return right._replace(latency=right.latency + 0.05) if bad in (link.low, link.high) else right

    findings, _ = flight(config, time_of)
    assert [finding.ranks for finding in findings] == [(bad,)]
    assert f"rank {bad} is slow on all of its" in findings[0].what


@given(meshes, st.data())
def test_a_busy_machine_makes_no_link_slow(config: ParallelConfig, data: st.DataObject) -> None:
    """Each measurement may be disturbed, by any factor, as long as a link is left alone at least once."""
    links = [link for together in all_links(Topology(config)) for link in together]
    quiet = {link: data.draw(st.integers(0, TRIES)) for link in links}
    noise = {link: data.draw(st.floats(1, 1e4)) for link in links}

    def time_of(link: Link, again: int) -> Timing:
        disturbed = again < quiet[link]
        return Timing(*(time * (noise[link] if disturbed else 1) for time in usual(link, again)))

    findings, _ = flight(config, time_of)
    assert findings == []


@given(meshes, st.data())
def test_a_few_milliseconds_on_a_busy_host_make_no_link_slow(
    config: ParallelConfig, data: st.DataObject
) -> None:
    links = [link for together in all_links(Topology(config)) for link in together]
    factors = {link: data.draw(st.floats(1, 7.5)) for link in links}
    findings, _ = flight(config, lambda link, again: Timing(0.4e-3 * factors[link], LATENCY))
    assert findings == []


def test_links_between_hosts_are_not_held_against_those_within() -> None:
    config, machines = ParallelConfig(dp=8), {rank: f"host{rank // 4}" for rank in range(8)}

    def time_of(link: Link, again: int) -> Timing:
        right = usual(link, again)
        return right if machines[link.low] == machines[link.high] else Timing(right.seconds * 20, 1e-3)

    assert flight(config, time_of, machines)[0] == []


def test_a_least_bandwidth_counts_where_there_is_nothing_to_compare_with() -> None:
    link = Link("dp", 0, 1)
    timings = {link: Timing(LIMITS.size / 1e9, LATENCY)}
    machines = {0: "host", 1: "host"}
    assert slow.suspects(timings, machines, LIMITS) == []
    assert slow.suspects(timings, machines, Limits(3.0, LIMITS.size, least_gbps=2.0)) == [link]
    assert slow.suspects(timings, machines, Limits(3.0, LIMITS.size, least_gbps=0.5)) == []


def test_a_suspect_is_measured_in_turns_with_a_usual_link() -> None:
    links = [Link("dp", low, high) for low, high in combinations(range(4), 2)]
    timings = {link: usual(link, 0) for link in links}
    timings[links[3]] = Timing(1.0, LATENCY)
    order, references = slow.plan([links[3]], timings, dict.fromkeys(range(4), "host"))
    assert order == [*references, links[3]]
    assert links[3] not in references
