"""Ranks at which chains of waits end, circles of waits, and transfers that all began and none ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from npu_plugins.diagnostics.hang.findings import Absence, Cause, ended_for_another
from npu_plugins.diagnostics.hang.history import History, describe, plain_op
from npu_plugins.diagnostics.hang.places import Source, frame_text, inside, main_stack, users_frames
from npu_plugins.diagnostics.hang.ranks_text import capital, ranks_text, the_ranks
from npu_plugins.diagnostics.hang.waits import Graph, Waiting, chain_to, circle_in, roots

_MOVING = 0.5
"""A rank that began a call within this part of the others' wait is slow or elsewhere, but not stuck."""
_ORDER = ("left", "not entered", "slow", "failed", "killed", "silent")


def blocked(
    history: History, absent: Mapping[int, Absence], graph: Graph, busy: Collection[int], source: Source
) -> list[Cause]:
    """Return the ranks that others wait for and that wait for nobody, then the circles of waits.

    Args:
        history: what the ranks called.
        absent: ranks without a dump.
        graph: who waits for whom.
        busy: ranks whose program is seen to do something else than wait.
        source: reads the text of a line.
    """
    edges = graph.edges()
    ends, circles = roots(edges, busy)
    found: dict[tuple[object, ...], list[int]] = {}
    asked = ended_for_another(absent)
    for rank in ends:
        if graph.waiters((rank,)) and rank not in asked:
            found.setdefault(_key(history, absent, graph, rank), []).append(rank)
    causes = [_not_come(history, absent, graph, ranks, source) for ranks in found.values()]
    causes.sort(key=lambda cause: _ORDER.index(cause.kind))
    for component in circles:
        circle = circle_in(graph.first_edges(), component) or circle_in(edges, component)
        causes.append(_circle(history, graph, circle, source))
    return causes


def transfers(history: History, graph: Graph) -> list[Cause]:
    """Return the oldest call to which all came and which does not end."""
    open_calls = [waiting for calls in graph.waiting.values() for waiting in calls if not waiting.waits_for]
    if not open_calls:
        return []
    oldest = max(open_calls, key=lambda waiting: waiting.seconds)
    call = oldest.call
    same = {
        waiting.rank: waiting.call
        for waiting in open_calls
        if (waiting.call.group, waiting.call.sequence, waiting.call.p2p)
        == (call.group, call.sequence, call.p2p)
    }
    states = {rank: made.state for rank, made in same.items()}
    behind = [rank for rank, state in states.items() if state == "scheduled"]
    sentence = (
        f"{capital(the_ranks(same))} came to {call_text(history, oldest)} and called the same, but it does "
        f"not end ({oldest.seconds:.0f} s)"
    )
    if "started" in states.values() and behind:
        return [
            Cause(
                "transfer",
                tuple(behind),
                f"{sentence}: the device of {the_ranks(behind)} has not begun it.",
                "Earlier work on that device is stuck: run again with ASCEND_LAUNCH_BLOCKING=1 to see which, "
                "and check the device (`npu-smi info`).",
            )
        ]
    return [
        Cause(
            "transfer",
            tuple(same),
            f"{sentence}: a link between these ranks, or earlier work on one of their devices, is stuck.",
            "Measure the links (`npu-plugins comm-perf`), and check ports and devices: "
            "`hccn_tool -i 0 -link -g`, `npu-smi info`.",
        )
    ]


def call_text(history: History, waiting: Waiting) -> str:
    """Return a call as a report shows it: `all_reduce number 57 of dp (Float [4096])`."""
    call = waiting.call
    what = describe(call)
    name = f"{call.op or 'collective'} number {call.sequence}"
    if call.p2p and call.peer is not None:
        direction = {"send": "to", "recv": "from"}.get(plain_op(call.op), "with")
        name = f"{call.op or 'a transfer'} {direction} rank {call.peer}"
    return f"{name} of {history.label(waiting.rank, call.group)}" + (f" ({what})" if what else "")


def place_text(history: History, rank: int, source: Source) -> str:
    """Return where a rank is: file, line, function and the line's text; empty if not known."""
    stack = main_stack(history.dumps[rank])
    frames = users_frames(stack)
    if not frames:
        return ""
    function = inside(stack)
    return frame_text(frames[0], source) + (f", inside {function}" if function else "")


def _key(history: History, absent: Mapping[int, Absence], graph: Graph, rank: int) -> tuple[object, ...]:
    """Return what is the same for ranks that make one cause: how they are missing, where, and from what."""
    longest = _longest(graph, (rank,))
    call = (history.label(longest.rank, longest.call.group), longest.call.sequence, longest.call.p2p)
    if rank in absent:
        return (absent[rank].kind, absent[rank].detail, *call)
    frames = users_frames(main_stack(history.dumps[rank]))
    return (frames[0] if frames else None, *call)


def _longest(graph: Graph, ranks: Collection[int]) -> Waiting:
    return max(graph.waiters(ranks), key=lambda waiting: waiting.seconds)


def _not_come(
    history: History, absent: Mapping[int, Absence], graph: Graph, ranks: list[int], source: Source
) -> Cause:
    longest = _longest(graph, ranks)
    place = (longest.call.sequence, longest.call.p2p, history.label(longest.rank, longest.call.group))
    waiters = {
        waiting.rank
        for waiting in graph.waiters(ranks)
        if place == (waiting.call.sequence, waiting.call.p2p, history.label(waiting.rank, waiting.call.group))
    }
    who, call = the_ranks(ranks), call_text(history, longest)
    wait = f"{the_ranks(waiters)} {'waits' if len(waiters) == 1 else 'wait'} ({longest.seconds:.0f} s)"
    missed = f"{capital(who)} did not come to {call}, where {wait}."
    if len(waiters) == 1 and len(ranks) > 1:
        missed = f"Only {the_ranks(waiters)} came to {call}, and waits for {who} ({longest.seconds:.0f} s)."
    missed += _behind(history, graph, waiters.union(ranks), ranks)
    if ranks[0] in absent:
        return _not_there(absent[ranks[0]], ranks, missed)
    return _elsewhere(history, ranks, missed, longest, source)


def missed_ranks(absent: Mapping[int, Absence], failed: Collection[int]) -> Cause:
    """Return the ranks, absent in one way, that `failed` ranks miss, though their calls do not show it."""
    ranks = sorted(absent)
    return _not_there(absent[ranks[0]], ranks, f"{capital(the_ranks(failed))} missed another rank in a call.")


def _behind(history: History, graph: Graph, told: Collection[int], ranks: list[int]) -> str:
    """Return who else waits, with one chain of waits that ends at `ranks`."""
    waiting = {rank: graph.of(rank) for rank in graph.waiting}
    others = [rank for rank, one in waiting.items() if one is not None and one.waits_for and rank not in told]
    if not others:
        return ""
    edges = graph.edges()
    indirect = [rank for rank in others if edges[rank].isdisjoint(ranks)]
    steps = []
    for rank, other in chain_to(edges, indirect[0], ranks) if indirect else ():
        call = next(one.call for one in graph.waiting[rank] if other in one.waits_for + one.behind)
        steps.append(f"rank {rank} for rank {other} in {history.label(rank, call.group)}")
    chain = f" ({', '.join(steps)})" if steps else ""
    return f" Behind that {the_ranks(others)} {'waits' if len(others) == 1 else 'wait'}{chain}."


def _not_there(absence: Absence, ranks: list[int], missed: str) -> Cause:
    who, plural = the_ranks(ranks), len(ranks) > 1
    if absence.kind == "left":
        detail = f" ({absence.detail})" if absence.detail else ""
        return Cause(
            "left",
            tuple(ranks),
            f"{missed} {capital(who)} ended{detail}, as if all was done.",
            "Let all ranks make the same calls to the end: look for a return, an exit or a shorter loop that "
            f"only {who} {'take' if plural else 'takes'}, such as fewer batches of data.",
            absence.when,
        )
    if absence.kind == "silent":
        return Cause(
            "silent",
            tuple(ranks),
            f"{missed} Nothing is known of {who}: {absence.detail or 'no dump'}.",
            f"See whether the {'hosts' if plural else 'host'} of {who} can be reached, and whether the "
            f"{'processes live' if plural else 'process lives'} (`npu-plugins hang dump` there).",
            absence.when,
        )
    return Cause(
        absence.kind,
        tuple(ranks),
        f"{missed} {capital(who)} ended: {absence.detail or absence.kind}.",
        "See the last lines of output of these ranks.",
        absence.when,
    )


def _elsewhere(history: History, ranks: list[int], missed: str, longest: Waiting, source: Source) -> Cause:
    rank, who = ranks[0], the_ranks(ranks)
    dump, be = history.dumps[rank], "is" if len(ranks) == 1 else "are"
    place = place_text(history, rank, source)
    where = f"{capital(who)} {be} at {place}." if place else f"Where {who} {be}, the dump does not tell."
    if dump.error:
        where = (
            f"{capital(who)} {'was' if be == 'is' else 'were'} ended by {' '.join(dump.error.split())[:200]}."
        )
    began = longest.call.created
    since = [call for call in dump.calls if call.created > began]
    if since and dump.taken - since[-1].created < _MOVING * longest.seconds:
        return Cause(
            "slow",
            tuple(ranks),
            f"{missed} {where} It moves: {len(since)} calls since, the last "
            f"{dump.taken - since[-1].created:.0f} s before the dump.",
            f"{capital(who)} {be} behind the others, or {'runs' if be == 'is' else 'run'} longer: compare "
            "the amount of data of each rank, its loading, other processes on its host, its device "
            "(`npu-smi info`). Raise HCCL_TIMEOUT if that is as it should be.",
        )
    before = history.last(rank, longest.call.group)
    done = f" The last call there was number {before}." if before and not longest.call.p2p else ""
    return Cause(
        "not entered",
        tuple(ranks),
        f"{missed} {where}{done}",
        f"Look at what keeps {who} there, or lets {who} leave out the call; raise HCCL_TIMEOUT if it may "
        "take that long.",
    )


def _circle(history: History, graph: Graph, circle: list[int], source: Source) -> Cause:
    told = []
    for rank, other in zip(circle, circle[1:] + circle[:1], strict=True):
        waiting = next(one for one in graph.waiting[rank] if other in one.waits_for + one.behind)
        frames = users_frames(waiting.call.stack or main_stack(history.dumps[rank]))
        place = f" at {frame_text(frames[0], source)}" if frames else ""
        told.append(f"rank {rank} waits in {call_text(history, waiting)}{place} for rank {other}")
    both = [graph.of(rank) for rank in circle]
    sends = all(waiting is not None and waiting.call.p2p for waiting in both)
    mend = (
        "Let one side receive first, or give both halves to torch.distributed.batch_isend_irecv."
        if sends
        else "Let all ranks make these calls in one order; look at what lets some make another call first."
    )
    return Cause(
        "deadlock",
        tuple(sorted(circle)),
        f"Ranks {ranks_text(circle)} wait for each other: {'; '.join(told)}.",
        mend,
    )
