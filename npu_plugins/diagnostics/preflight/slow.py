"""Which links are slow against others of their kind. Pure functions of the measured times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npu_plugins.diagnostics.preflight.links import Link, Timing
from npu_plugins.diagnostics.preflight.report import Finding, counted, ranks_in_words

FLOOR = 1e-3
"""Seconds that an exchange may take longer than others of its kind, whatever the factor."""
CLEAR, UNCLEAR_FLOOR = 8.0, 20e-3
"""Below so many times as long, an exchange must take so many seconds longer: where other programs fill the
host's cores, four times as long, of a few milliseconds, was seen in each try. Larger messages show more.
"""
ENOUGH = 3
"""Links of one axis from which on they are compared with each other only."""
MOST_SUSPECTS = 64
"""Links that are measured again in one go, the slowest first."""
TRIES = 4
"""Times that a link is measured again by itself before it is called slow."""


@dataclass(frozen=True)
class Limits:
    """When a link is slow."""

    factor: float
    """Times as long as others of its kind."""
    size: int
    """Of a message, in bytes."""
    least_gbps: float = 0.0
    """GB/s (1e9 bytes a second, each way) below which a link is slow in any case; 0: none."""


def kinds(links: Sequence[Link], machines: Mapping[int, str]) -> dict[Link, list[Link]]:
    """Return for each link those that it is compared with, itself among them.

    They are of its axis and, like it, within a machine or between two. Where an axis has fewer than `ENOUGH`
    of them, they are those of all axes.
    """
    inside = {link: machines.get(link.low) == machines.get(link.high) for link in links}
    found = {}
    for link in links:
        alike = [other for other in links if inside[other] == inside[link]]
        of_axis = [other for other in alike if other.axis == link.axis]
        found[link] = of_axis if len(of_axis) >= ENOUGH else alike
    return found


def usual(times: Sequence[float]) -> float:
    """Return what others are held against: the time that a quarter of them reach.

    One slow rank slows down all its links, which are 2 / n of those among n ranks: the median of three ranks
    could be one of them.
    """
    return sorted(times)[(len(times) - 1) // 4]


def suspects(
    timings: Mapping[Link, Timing],
    machines: Mapping[int, str],
    limits: Limits,
    among: Sequence[Link] | None = None,
) -> list[Link]:
    """Return the links that seem slow, the slowest first.

    Args:
        timings: of all links.
        machines: by rank, which machine it runs on.
        limits: when a link is slow.
        among: only these; by default all.
    """
    compared = kinds(list(timings), machines)
    slowness = {}
    for link in timings if among is None else among:
        others = [timings[other] for other in compared[link]]
        ratios = [
            _ratio(timings[link].seconds, usual([o.seconds for o in others]), limits.factor),
            _ratio(timings[link].latency, usual([o.latency for o in others]), limits.factor),
            _below(timings[link].seconds, limits),
        ]
        if max(ratios):
            slowness[link] = max(ratios)
    return sorted(slowness, key=lambda link: (-slowness[link], link))


def plan(
    found: Sequence[Link], timings: Mapping[Link, Timing], machines: Mapping[int, str]
) -> tuple[list[Link], list[Link]]:
    """Return the suspects to measure again, and with each of them a usual link of its kind, in turns.

    Returns:
        The order of measuring, and the usual links among them.
    """
    compared = kinds(list(timings), machines)
    order: list[Link] = []
    references: list[Link] = []
    for link in found[:MOST_SUSPECTS]:
        others = sorted(
            (other for other in compared[link] if other not in found), key=lambda o: timings[o].seconds
        )
        if others:
            reference = others[(len(others) - 1) // 4]
            references += [reference] if reference not in references else []
            order += [reference]
        order += [link]
    return order, references


def judge(
    slow: Sequence[Link],
    timings: Mapping[Link, Timing],
    machines: Mapping[int, str],
    hosts: Mapping[int, str],
    limits: Limits,
) -> list[Finding]:
    """Return a finding for each slow rank, that is one with all of its links slow, and each other slow link.

    Args:
        slow: links that stayed slow whenever they were measured.
        timings: of all links, the quickest of each.
        machines, hosts: by rank.
        limits: by which they are slow.
    """
    compared = kinds(list(timings), machines)
    of_rank: dict[int, list[Link]] = {}
    for link in timings:
        for rank in (link.low, link.high):
            of_rank.setdefault(rank, []).append(link)
    slow_ranks = [
        rank
        for rank, links in sorted(of_rank.items())
        if len(links) > 1 and all(link in slow for link in links) and len(slow) < len(timings)
    ]
    found = []
    for rank in slow_ranks:
        worst = max(of_rank[rank], key=lambda link: timings[link].seconds)
        what = (
            f"rank {rank}{_host(rank, hosts)} is slow on all of its {len(of_rank[rank])} links: with rank "
            f"{worst.low + worst.high - rank} {_told(worst, timings, compared, limits)}"
        )
        mend = "look at what else runs on its host (npu-smi info, top), and at the health of its card"
        found.append(Finding("slow", "error", (rank,), what, mend))
    for link in slow:
        if link.low not in slow_ranks and link.high not in slow_ranks:
            what = (
                f"the link of {ranks_in_words((link.low, link.high), hosts)} along {link.axis} is slow: "
                f"{_told(link, timings, compared, limits)}"
            )
            mend = "look at cable, port and interface between them (hccn_tool -link; npu-smi info -t topo)"
            found.append(Finding("slow", "error", (link.low, link.high), what, mend))
    return found


def summary(timings: Mapping[Link, Timing], size: int) -> tuple[str, list[dict[str, Any]]]:
    """Return the links of each axis in words, and all of them as JSON."""
    told = []
    for axis in dict.fromkeys(link.axis for link in timings):
        of_axis = [timing for link, timing in timings.items() if link.axis == axis]
        speeds = sorted(size / timing.seconds / 1e9 for timing in of_axis)
        latencies = sorted(timing.latency for timing in of_axis)
        told.append(
            f"{axis}: {counted(len(of_axis), 'link')}, {_range(speeds, 1.0)} GB/s, "
            f"{_range(latencies, 1e6)} µs"
        )
    as_json = [
        {
            "axis": link.axis,
            "ranks": [link.low, link.high],
            "gbps": size / t.seconds / 1e9,
            "latency_s": t.latency,
        }
        for link, t in timings.items()
    ]
    return "; ".join(told), as_json


def _ratio(time: float, usual_time: float, factor: float) -> float:
    """How slow it is; 0 if it is not slow."""
    floor = FLOOR if time > CLEAR * usual_time else UNCLEAR_FLOOR
    return time / usual_time if time > factor * usual_time and time > usual_time + floor else 0.0


def _below(time: float, limits: Limits) -> float:
    """How far it is below the least bandwidth; 0 if it is not."""
    most = limits.size / limits.least_gbps / 1e9 if limits.least_gbps else time
    return time / most if time > most else 0.0


def _told(
    link: Link, timings: Mapping[Link, Timing], compared: Mapping[Link, list[Link]], limits: Limits
) -> str:
    others = [timings[other] for other in compared[link]]
    usual_time = usual([other.seconds for other in others])
    usual_latency = usual([other.latency for other in others])
    mine = timings[link]
    return (
        f"{_figure(limits.size / mine.seconds / 1e9)} GB/s and {_figure(mine.latency * 1e6)} µs, where "
        f"usual are {_figure(limits.size / usual_time / 1e9)} GB/s and {_figure(usual_latency * 1e6)} µs"
    )


def _range(ordered: Sequence[float], unit: float) -> str:
    low, high = _figure(ordered[0] * unit), _figure(ordered[-1] * unit)
    return low if low == high else f"{low}–{high}"


def _figure(number: float) -> str:
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def _host(rank: int, hosts: Mapping[int, str]) -> str:
    return f" (host {hosts[rank]})" if hosts.get(rank) else ""
