"""Facts of ranks: who differs is found whatever the mesh, and nobody where all is alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import Topology
from npu_plugins.diagnostics.preflight import Finding
from npu_plugins.diagnostics.preflight.compare import (
    ABSENT,
    Fact,
    as_message,
    compare,
    differing,
    facts_of,
    flattened,
    from_message,
)

degrees = st.builds(ParallelConfig, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
NO_HOSTS: dict[int, str] = {}


def judged(facts: list[list[Fact]], config: ParallelConfig) -> list[Finding]:
    """Return what rank 0 makes of all ranks' facts, sent as they are sent."""
    others = {
        rank: from_message(as_message(differing(mine, facts[0]))) for rank, mine in enumerate(facts) if rank
    }
    return compare(facts[0], others, Topology(config), NO_HOSTS)


def test_leaves_are_named_by_their_path() -> None:
    tree = {"zero": {"stage": 2, "offload": {}}, "betas": [0.9, 0.95], "bf16": True}
    assert flattened(tree) == {
        "zero.stage": "2", "zero.offload": "{}", "betas.0": "0.9", "betas.1": "0.95", "bf16": "True"
    }  # fmt: skip


def test_the_type_of_a_value_counts() -> None:
    facts = [facts_of("ds_config", {"stage": value}, "mend") for value in (2, "2", 2)]
    (finding,) = judged(facts, ParallelConfig(dp=3))
    assert finding.what == "ds_config: stage is '2' on rank 1, but 2 on ranks 0, 2"


@given(degrees, st.data())
def test_the_minority_is_named(config: ParallelConfig, data: st.DataObject) -> None:
    values = data.draw(
        st.lists(st.sampled_from("aab"), min_size=config.world_size, max_size=config.world_size)
    )
    findings = judged([[Fact("kind", "name", value)] for value in values], config)
    counts = Counter(values).most_common()
    if len(counts) == 1:
        assert findings == []
        return
    (finding,) = findings
    alike = counts[0][1] == counts[1][1]
    expected = [rank for rank, value in enumerate(values) if alike or value != counts[0][0]]
    assert finding.ranks == tuple(expected)
    assert (finding.kind, finding.level) == ("different", "error")


@given(degrees, st.data())
def test_axes_along_which_values_are_alike_or_apart(config: ParallelConfig, data: st.DataObject) -> None:
    """Each replica has a value of its own, the same on all of its ranks; then one rank takes another's."""
    topology = Topology(config)
    replica = [topology.coordinate(rank).dp for rank in range(config.world_size)]

    def facts(values: list[int]) -> list[list[Fact]]:
        return [
            [
                Fact("seeds", "of data", str(value), alike=("tp", "pp")),
                Fact("seeds", "of dropout", str(value), apart=("dp",)),
            ]
            for value in values
        ]

    assert judged(facts(replica), config) == []
    if config.dp == 1:
        return
    wrong = data.draw(st.integers(0, config.world_size - 1))
    other = (replica[wrong] + 1) % config.dp
    findings = judged(
        facts([other if rank == wrong else value for rank, value in enumerate(replica)]), config
    )
    kinds = {finding.kind: finding for finding in findings}
    assert wrong in kinds["alike"].ranks
    assert ("different" in kinds) == (config.tp * config.pp > 1)
    if "different" in kinds:
        assert wrong in kinds["different"].ranks


def test_a_fact_that_only_some_ranks_have() -> None:
    extra = [Fact("environment", "HCCL_ALGO", "ring")]
    for facts, ranks in (([[], extra, []], (1,)), ([extra, [], []], (0,)), ([extra, extra, []], (2,))):
        (finding,) = judged(facts, ParallelConfig(dp=3))
        assert finding.ranks == ranks
        assert ABSENT in finding.what and "'ring'" not in finding.what and "ring" in finding.what


def test_warnings_stay_warnings_and_many_differences_become_few_sentences() -> None:
    first = [Fact("arguments", f"a{number}", "1", level="warning") for number in range(20)]
    other = [replace(fact, value="2") for fact in first]
    findings = judged([first, other, first], ParallelConfig(dp=3))
    assert len(findings) == 5
    assert {finding.level for finding in findings} == {"warning"}
    assert findings[0].what.startswith("arguments: a0 is 2 on rank 1"), (
        "the first one that differs comes first"
    )
    assert findings[-1].what.endswith("(and 15 more differences of this kind)")


def test_many_values_are_not_all_told() -> None:
    (finding,) = judged([[Fact("kind", "name", str(rank))] for rank in range(12)], ParallelConfig(dp=12))
    assert finding.what.count(" on rank ") == 5
    assert "7 more values on others" in finding.what


def test_only_differences_are_sent() -> None:
    facts = facts_of("config", {str(number): number for number in range(100)}, "mend")
    assert differing(facts, facts) == []
    apart = Fact("device", "used", "npu 0", apart=("dp",))
    assert differing([*facts, apart], [*facts, apart]) == [apart]


@pytest.mark.parametrize("value", ["x" * 1000])
def test_long_values_are_cut(value: str) -> None:
    (finding,) = judged([[Fact("kind", "name", value)], [Fact("kind", "name", "y")]], ParallelConfig(dp=2))
    assert len(finding.what) < 250
