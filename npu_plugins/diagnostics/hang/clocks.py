"""How far the clocks of hosts are apart, as the times tell at which ranks began the same calls."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median

from npu_plugins.diagnostics.hang.dump import RankDump
from npu_plugins.diagnostics.hang.history import History

_FEWEST = 3
"""Calls in common below which nothing is said: one rank's delay would pass for a clock's."""


def clock_skews(history: History) -> dict[str, float]:
    """Return the seconds that each host's clock is ahead of the first host's; empty for one host.

    Ranks of a job begin a finished collective at about the same moment, so that the median of the differences
    is the clocks'. What it cannot tell from a clock is a delay that comes before every call.
    """
    hosts = _ranks_by_host(history.dumps)
    if len(hosts) < 2:
        return {}
    begun: dict[str, dict[tuple[str, int], list[float]]] = {host: {} for host in hosts}
    for host, ranks in hosts.items():
        for rank in ranks:
            for call in history.dumps[rank].calls:
                if not call.p2p and call.state == "completed":
                    begun[host].setdefault((call.group, call.sequence), []).append(call.created)
    first, *others = hosts
    skews = {first: 0.0}
    for host in others:
        apart = [
            fmean(times) - fmean(begun[first][place])
            for place, times in begun[host].items()
            if place in begun[first]
        ]
        skews[host] = median(apart) if len(apart) >= _FEWEST else 0.0
    return skews


def _ranks_by_host(dumps: Mapping[int, RankDump]) -> dict[str, list[int]]:
    hosts: dict[str, list[int]] = {}
    for rank in sorted(dumps):
        hosts.setdefault(dumps[rank].host, []).append(rank)
    return hosts
