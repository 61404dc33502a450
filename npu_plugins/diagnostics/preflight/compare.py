"""Facts that ranks must have alike, or apart, and which of the ranks differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npu_plugins.comm.topology import AXES, Topology
from npu_plugins.diagnostics.preflight.report import Finding, ranks_in_words

EVERYWHERE = AXES
SHOWN = 5
"""Differing facts of one kind that are told one by one; of the rest only the number."""
LONGEST = 120
"""Characters of a value in a sentence."""


@dataclass(frozen=True)
class Fact:
    """One thing that a rank says of itself, the same set of names on all ranks where they are alike."""

    kind: str
    """What it belongs to, such as ``versions`` or ``ds_config``; facts of one kind are told together."""
    name: str
    value: str
    """As text; absent facts count as ``(not set)``."""
    alike: tuple[str, ...] = EVERYWHERE
    """Axes along which all ranks must have the same value."""
    apart: tuple[str, ...] = ()
    """Axes along which each rank must have a value of its own; then `alike` says nothing."""
    level: str = "error"
    mend: str = "give all ranks the same"


ABSENT = "(not set)"


def flattened(tree: Any, name: str = "") -> dict[str, str]:
    """Return the leaves of nested dicts and lists as text, by their path: ``zero_optimization.stage``.

    Keys come in the tree's own order, a number as JSON has it.
    """
    if isinstance(tree, Mapping) and tree:
        entries = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, (list, tuple)) and tree:
        entries = [(str(place), value) for place, value in enumerate(tree)]
    else:
        return {name: repr(tree)}
    found: dict[str, str] = {}
    for key, value in entries:
        found.update(flattened(value, f"{name}.{key}" if name else key))
    return found


def facts_of(kind: str, tree: Any, mend: str, level: str = "error") -> list[Fact]:
    """Return the leaves of a configuration as facts that are alike everywhere."""
    return [Fact(kind, name, value, level=level, mend=mend) for name, value in flattened(tree).items()]


def as_message(facts: Sequence[Fact]) -> list[list[Any]]:
    """Return facts as JSON."""
    return [[f.kind, f.name, f.value, list(f.alike), list(f.apart), f.level, f.mend] for f in facts]


def from_message(message: Sequence[Sequence[Any]]) -> list[Fact]:
    """Return the facts of a message."""
    return [
        Fact(kind, name, value, tuple(alike), tuple(apart), level, mend)
        for kind, name, value, alike, apart, level, mend in message
    ]


def differing(mine: Sequence[Fact], first: Sequence[Fact]) -> list[Fact]:
    """Return what rank 0 cannot know of this rank: facts with another value than its own, or apart anyway.

    A fact that only rank 0 has is returned as absent. So messages stay short in large jobs.
    """
    theirs = {(fact.kind, fact.name): fact for fact in first}
    own = {(fact.kind, fact.name) for fact in mine}
    found = [fact for fact in mine if fact != theirs.get((fact.kind, fact.name)) or fact.apart]
    absent = [fact for key, fact in theirs.items() if key not in own]
    return found + [Fact(f.kind, f.name, ABSENT, f.alike, f.apart, f.level, f.mend) for f in absent]


def compare(
    first: Sequence[Fact], others: Mapping[int, Sequence[Fact]], topology: Topology, hosts: Mapping[int, str]
) -> list[Finding]:
    """Return what differs, or does not differ, against what the facts ask for.

    Args:
        first: the facts of rank 0.
        others: by rank, its facts as `differing` returns them.
        topology: of the job.
        hosts: by rank.
    """
    facts: dict[tuple[str, str], Fact] = {}
    for fact in [*first, *(fact for told in others.values() for fact in told)]:
        facts.setdefault((fact.kind, fact.name), fact)
    base = {(fact.kind, fact.name): fact.value for fact in first}
    own = {rank: {(fact.kind, fact.name): fact.value for fact in told} for rank, told in others.items()}
    found: dict[tuple[str, str], list[Finding]] = {}
    for key, fact in facts.items():
        values = {rank: own[rank].get(key, base.get(key, ABSENT)) for rank in own}
        values[0] = base.get(key, ABSENT)
        judge = _not_apart if fact.apart else _not_alike
        found.setdefault((fact.kind, fact.level), []).extend(judge(fact, values, topology, hosts))
    return [finding for findings in found.values() for finding in _shortened(findings)]


def _not_alike(
    fact: Fact, values: Mapping[int, str], topology: Topology, hosts: Mapping[int, str]
) -> Iterator[Finding]:
    for ranks in _groups(fact.alike, values, topology):
        by_value: dict[str, list[int]] = {}
        for rank in ranks:
            by_value.setdefault(values[rank], []).append(rank)
        if len(by_value) > 1:
            sides = sorted(by_value.items(), key=lambda side: (-len(side[1]), side[1]))
            minority = sides[1:] if len(sides[0][1]) > len(sides[1][1]) else sides
            at_fault = sorted(rank for _, side in minority for rank in side)
            # Those at fault first, the majority last.
            told = [*sides[1:], sides[0]] if minority != sides else sides
            shown = [f"{_short(value)} on {ranks_in_words(side, hosts)}" for value, side in told]
            if len(shown) > SHOWN:
                shown[SHOWN - 1 : -1] = [f"{len(shown) - SHOWN} more values on others"]
            what = f"{fact.kind}: {fact.name} is {', '.join(shown[:-1])}, but {shown[-1]}"
            yield Finding("different", fact.level, tuple(at_fault), what, fact.mend)


def _not_apart(
    fact: Fact, values: Mapping[int, str], topology: Topology, hosts: Mapping[int, str]
) -> Iterator[Finding]:
    for ranks in _groups(fact.apart, values, topology):
        by_value: dict[str, list[int]] = {}
        for rank in ranks:
            if values[rank] != ABSENT:
                by_value.setdefault(values[rank], []).append(rank)
        for value, same in by_value.items():
            if len(same) > 1:
                what = f"{fact.kind}: {fact.name} is {_short(value)} on each of {ranks_in_words(same, hosts)}"
                yield Finding("alike", fact.level, tuple(same), what, fact.mend)


def _groups(axes: Sequence[str], values: Mapping[int, str], topology: Topology) -> list[list[int]]:
    """Ranks that differ in their place along `axes` only."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in sorted(values):
        place = topology.coordinate(rank)._asdict()
        found.setdefault(tuple(place[axis] for axis in AXES if axis not in axes), []).append(rank)
    return list(found.values())


def _shortened(findings: list[Finding]) -> list[Finding]:
    """The first findings of a kind, the last of them with the number of those left out."""
    if len(findings) <= SHOWN:
        return findings
    last, more = findings[SHOWN - 1], len(findings) - SHOWN
    told = f"{last.what} (and {more} more differences of this kind)"
    return [*findings[: SHOWN - 1], Finding(last.kind, last.level, last.ranks, told, last.mend)]


def _short(value: str) -> str:
    return value if len(value) <= LONGEST else value[: LONGEST - 1] + "…"
