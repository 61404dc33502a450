"""From the dumps of all ranks to findings: what is the cause, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from npu_plugins.diagnostics.codes import explain
from npu_plugins.diagnostics.errors import DiagnosticsError
from npu_plugins.diagnostics.hang.clocks import clock_skews
from npu_plugins.diagnostics.hang.dump import RankDump
from npu_plugins.diagnostics.hang.faults import consequences, find_faults, is_consequence
from npu_plugins.diagnostics.hang.findings import Absence, Cause, Findings
from npu_plugins.diagnostics.hang.history import History
from npu_plugins.diagnostics.hang.mismatch import find_mismatches, find_other_members
from npu_plugins.diagnostics.hang.pairs import find_unlike_pairs
from npu_plugins.diagnostics.hang.places import Source, main_stack, read_line, waits_in
from npu_plugins.diagnostics.hang.stuck import blocked, missed_ranks, transfers
from npu_plugins.diagnostics.hang.summary import group_places, group_waits
from npu_plugins.diagnostics.hang.unlike_calls import find_unlike_calls
from npu_plugins.diagnostics.hang.waits import Graph, make_graph

_PATIENCE = 30.0
"""Seconds after which an open call counts as a wait in a dump that was only asked for."""


def analyse(
    dumps: Mapping[int, RankDump], absent: Mapping[int, Absence], *, source: Source = read_line
) -> Findings:
    """Say which ranks are the cause of a hang or failure, and where all of them are.

    The order in which causes are believed: what ended by itself (a killed process, memory, an exception), the
    earliest first; calls that do not fit each other; the ranks at which the chains of waits end. Exceptions
    that only say that another rank did not come are causes if nothing else is found.

    Args:
        dumps: by global rank; at least one.
        absent: ranks that gave no dump, with what is known of them. A rank in neither is taken for silent.
        source: reads the text of a frame's line; by default from the file, where it is there.

    Returns:
        The findings. A dump that was only asked for, of a job that does well, has no causes.

    Raises:
        DiagnosticsError: there are no dumps, or they are of jobs of different sizes.
    """
    if not dumps:
        raise DiagnosticsError("There are no dumps to be analysed; give those of one job's ranks")
    sizes = {dump.world_size for dump in dumps.values()}
    if len(sizes) > 1:
        raise DiagnosticsError(
            f"The dumps are of jobs of {' and '.join(map(str, sorted(sizes)))} ranks; give those of one job"
        )
    dumps = dict(sorted(dumps.items()))
    world_size = sizes.pop()
    absent = {
        rank: Absence("silent", "it gave no dump") for rank in range(world_size) if rank not in dumps
    } | {rank: absence for rank, absence in sorted(absent.items()) if rank not in dumps}
    history = History(dumps, world_size)
    skews = clock_skews(history)
    gone = {rank for rank, dump in dumps.items() if dump.error and not is_consequence(dump, source)}
    graph = make_graph(history, gone, _patience(dumps))
    return _tell(history, absent, graph, skews, source)


def _tell(
    history: History, absent: Mapping[int, Absence], graph: Graph, skews: Mapping[str, float], source: Source
) -> Findings:
    dumps = history.dumps
    causes = _causes(history, absent, graph, lambda host: skews.get(host, 0.0), source)
    blamed = {rank for cause in causes if cause.kind == "out of memory" for rank in cause.ranks}
    oldest = [waiting.seconds for calls in graph.waiting.values() for waiting in calls]
    hosts: dict[str, list[int]] = {}
    for rank, dump in dumps.items():
        hosts.setdefault(dump.host, []).append(rank)
    return Findings(
        reason=_reason(dumps),
        world_size=history.world_size,
        hosts={host: tuple(ranks) for host, ranks in hosts.items()},
        device=_device(dumps),
        timeout=max(dump.timeout for dump in dumps.values()),
        waited=max([*oldest, *(dump.waited for dump in dumps.values())]),
        taken=min(dump.taken for dump in dumps.values()),
        causes=tuple(causes),
        waits=group_waits(history, graph, source),
        places=group_places(history, graph, source),
        absent=absent,
        memory={rank: dumps[rank].memory for rank in sorted(blamed) if rank in dumps and dumps[rank].memory},
        skews=skews,
        explanations=tuple(explain("\n".join(dict.fromkeys(dump.error for dump in dumps.values())))),
    )


def _causes(
    history: History,
    absent: Mapping[int, Absence],
    graph: Graph,
    clock: Callable[[str], float],
    source: Source,
) -> list[Cause]:
    dumps = history.dumps
    failed = find_faults(dumps, absent, clock, source)
    if failed:
        return failed
    if _reason(dumps) != "asked" or graph.waiting:
        unlike = find_other_members(history) + find_mismatches(history, source)
        unlike = unlike or find_unlike_pairs(history, source)
        told = find_unlike_calls(dumps)  # where some rings cannot be read, the errors may show a majority
        if told and (not unlike or len(told[0].ranks) < len(unlike[0].ranks)):
            return told
        if unlike:
            return unlike
    busy = {
        rank for rank, dump in dumps.items() if main_stack(dump) and not waits_in(main_stack(dump), source)
    }
    found = blocked(history, absent, graph, busy, source)
    late = consequences(dumps, source)
    following = {rank for cause in late for rank in cause.ranks}
    # Who raised that another rank did not come waited for it, though the ring of a device in error is silent.
    others = [cause for cause in found if not following.issuperset(cause.ranks)]
    if others:
        return others
    for kind in ("left", "silent"):
        away = {rank: absence for rank, absence in absent.items() if absence.kind == kind}
        if late and away:
            return [missed_ranks(away, late[0].ranks)]
    if found:
        return found
    if late or _reason(dumps) == "asked":
        return late
    return transfers(history, graph) or [
        Cause(
            "nothing found",
            (),
            "All that the ranks' calls show is in order: no rank is missing, and none called something else.",
            "Look at where the ranks are, below; take a second report if they move.",
        )
    ]


def _reason(dumps: Mapping[int, RankDump]) -> str:
    """Return why the report is made: what is not `asked`, by the earliest dump."""
    first = min(dumps.values(), key=lambda dump: (dump.reason == "asked", dump.taken))
    return first.reason


def _patience(dumps: Mapping[int, RankDump]) -> float:
    if _reason(dumps) != "asked":
        return 0.0
    limits = [dump.timeout for dump in dumps.values() if dump.timeout]
    return min([_PATIENCE, *limits])


def _device(dumps: Mapping[int, RankDump]) -> str:
    """Return what the ranks run on, without the numbers of devices."""
    kinds = []
    for dump in dumps.values():
        kind, _, rest = dump.device.partition(":")
        words = " ".join([kind, *rest.split(" ")[1:]])
        if words.strip() and words not in kinds:
            kinds.append(words)
    return ", ".join(kinds)
