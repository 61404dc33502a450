"""What rank 0 makes of a phase: functions of all ranks' words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from npu_plugins.comm import Topology
from npu_plugins.diagnostics.preflight import clocks, collectives, links, slow
from npu_plugins.diagnostics.preflight.board import Received
from npu_plugins.diagnostics.preflight.compare import Fact, compare, from_message
from npu_plugins.diagnostics.preflight.place import Place, guessed_hosts
from npu_plugins.diagnostics.preflight.report import Finding, counted, ranks_in_words

BLOCKING = ("mesh", "device")
"""Kinds of facts without which ranks cannot communicate at all."""


class Outcome(NamedTuple):
    """What rank 0 makes of a phase."""

    line: str = ""
    figures: Any = None
    findings: Sequence[Finding] = ()
    stop: bool = False
    next: Any = None
    """What the ranks are to do next, as JSON."""


def of_meeting(received: Mapping[int, Received], opened: float, world_size: int, limit: float) -> Outcome:
    """Say who has come, how late, and who is missing.

    Args:
        received: by rank, its `Place` as JSON and when it came by its own clock.
        opened: when rank 0 began to collect, by its clock.
        world_size: ranks of the job.
        limit: seconds that rank 0 has waited at most.

    Returns:
        With the places as what is next.
    """
    places = {rank: Place(**message.value[0]) for rank, message in received.items()}
    hosts = guessed_hosts(places, world_size)
    missing = [rank for rank in range(world_size) if rank not in received]
    arrived = {0: opened}
    for rank, message in received.items():
        # By rank 0's clock; of a rank that was there before it, by the clock of the machine that they share.
        before = message.value[1] <= opened
        shared = 0 in places and places[rank].machine == places[0].machine
        if rank:
            arrived[rank] = message.value[1] if before and shared else max(opened, message.seen)
    first, last = min(arrived.values()), max(arrived, key=lambda rank: (arrived[rank], rank))
    lateness = arrived[last] - first
    findings = []
    if missing:
        what = (
            f"{ranks_in_words(missing, hosts)} did not come within {limit:g} s; {len(received)} of "
            f"{world_size} ranks did, the last of them rank {last} after {lateness:.1f} s"
        )
        mend = "look at the first error in the log there, and whether the host reaches MASTER_ADDR"
        findings.append(Finding("missing", "error", tuple(missing), what, mend))
    elif lateness > limit / 2:
        what = f"{ranks_in_words([last], hosts)} came {lateness:.1f} s after the first rank"
        mend = "look at what its host does at the start (file system, imports, other jobs)"
        findings.append(Finding("late", "warning", (last,), what, mend))
    line = f"{counted(len(received), 'rank')} within {lateness:.1f} s, the last of them rank {last}"
    figures = {"seconds_after_the_first": {rank: at - first for rank, at in sorted(arrived.items())}}
    following = {rank: place.to_message() for rank, place in places.items()}
    return Outcome(line, figures, findings, bool(missing), following)


def of_facts(
    first: Sequence[Fact], told: Mapping[int, Any], topology: Topology, hosts: Mapping[int, str]
) -> Outcome:
    """Say which facts differ; the ranks go on unless they could not communicate.

    Args:
        first: of rank 0.
        told: by rank, what `differing` returned there, as JSON.
        topology: of the job.
        hosts: by rank.
    """
    others = {rank: from_message(message) for rank, message in told.items() if rank}
    findings = compare(first, others, topology, hosts)
    blocks = [
        each for each in findings if each.level == "error" and each.what.split(":")[0] in BLOCKING
    ]  # a finding begins with the kind of its fact
    kinds = ", ".join(dict.fromkeys(fact.kind for fact in first))
    verdict = f"{len(findings)} not as they should be" if findings else "as they should be"
    return Outcome(f"{counted(len(first), 'fact')} ({kinds}), {verdict}", None, findings, bool(blocks))


def of_results(told: Mapping[int, Any], topology: Topology, hosts: Mapping[int, str]) -> Outcome:
    """Say whether collectives gave the right results; `told`: by rank, what `check_groups` returned."""
    axes = collectives.axes_to_check(topology)
    if not axes:
        return Outcome("one rank, no group")
    findings = collectives.judge(told, topology, hosts)
    counts = ", ".join(f"{len(topology.groups(axis))} × {axis}" for axis in axes)
    verdict = f"wrong in {len(findings)}" if findings else "all results right"
    return Outcome(f"all_gather and all_reduce in each group ({counts}), {verdict}", None, findings)


def of_clocks(told: Mapping[int, Any], most: float, hosts: Mapping[int, str]) -> Outcome:
    """Say how far clocks are apart; `told`: by rank, its `Skew` as JSON, None where none was measured."""
    skews = {rank: clocks.Skew(*skew) for rank, skew in told.items() if skew is not None}
    if not skews:
        return Outcome("one machine, one clock")
    furthest = max(skews.values(), key=lambda skew: abs(skew.seconds))
    line = (
        f"{len(skews) + 1} machines, at most {abs(furthest.seconds):.3f} s apart (± {furthest.error:.3f} s)"
    )
    figures = {rank: skew._asdict() for rank, skew in skews.items()}
    return Outcome(line, figures, clocks.judge(skews, most, hosts))


class LinkWatch:
    """What was measured of the links so far, and what is to be measured again."""

    def __init__(self, places: Mapping[int, Place], limits: slow.Limits) -> None:
        self.timings: dict[links.Link, links.Timing] = {}
        self.limits = limits
        self.machines = {rank: place.machine for rank, place in places.items()}
        self.hosts = {rank: place.host for rank, place in places.items()}
        self.suspected: list[links.Link] | None = None

    def judge(self, told: Mapping[int, Any], again: int) -> Outcome:
        """Take in what all ranks have measured, and say what to measure next, or what is slow.

        Args:
            told: by rank, its links with their times, as JSON.
            again: how often suspects have been measured by themselves.
        """
        for axis, low, high, *times in (entry for entries in told.values() for entry in entries):
            link, timing = links.Link(axis, low, high), links.Timing(*times)
            self.timings[link] = timing.best(self.timings.get(link, timing))
        self.suspected = slow.suspects(self.timings, self.machines, self.limits, self.suspected)
        if self.suspected and again < slow.TRIES:
            order, _ = slow.plan(self.suspected, self.timings, self.machines)
            return Outcome(next=order)
        findings = slow.judge(self.suspected, self.timings, self.machines, self.hosts, self.limits)
        line, figures = slow.summary(self.timings, self.limits.size)
        return Outcome(line, figures, findings)


def faults(
    name: str,
    told: Mapping[int, Sequence[Any]],
    world_size: int,
    hosts: Mapping[int, str],
    ended: Callable[[Sequence[int]], Sequence[int]],
) -> list[Finding]:
    """Ranks that did not do a phase's work: those that others wait for, not those that wait."""
    silent = [rank for rank in range(world_size) if rank not in told]
    gone = list(ended(silent))
    log = "look at the first error in its log"
    if gone:
        what = f"{ranks_in_words(gone, hosts)} ended in the middle of the phase {name}"
        return [Finding("lost", "error", tuple(gone), what, log)]
    if silent:
        what = f"{ranks_in_words(silent, hosts)} stopped answering in the phase {name}"
        mend = "look whether the process is stopped, and whether its host is reached"
        return [Finding("stuck", "error", tuple(silent), what, mend)]
    failed = {rank: message[1] for rank, message in told.items() if message[1]}
    if failed:
        return list(_failures(name, failed, hosts))
    stuck = {rank: message[3] for rank, message in told.items() if message[2]}
    if not stuck:
        return []
    least = min(steps for steps, _ in stuck.values())
    behind = [rank for rank, (steps, _) in stuck.items() if steps == least]
    step = stuck[behind[0]][1] or f"the phase {name}"
    what = f"{ranks_in_words(behind, hosts)} did not get through {step} in time"
    mend = (
        "look at what it is at (py-spy dump), at HCCL's log there, and at its interfaces (npu-plugins doctor)"
    )
    return [Finding("stuck", "error", tuple(behind), what, mend)]


def _failures(name: str, failed: Mapping[int, str], hosts: Mapping[int, str]) -> Iterator[Finding]:
    by_text: dict[str, list[int]] = {}
    for rank, text in sorted(failed.items()):
        by_text.setdefault(text, []).append(rank)
    for text, ranks in sorted(by_text.items(), key=lambda each: len(each[1])):
        what = f"{ranks_in_words(ranks, hosts)} failed in the phase {name}: {text}"
        yield Finding("failed", "error", tuple(ranks), what, "look at the first error in its log")
