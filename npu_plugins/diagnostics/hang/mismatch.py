"""Ranks that called different things at one place of a group, or made different groups under one name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from npu_plugins.diagnostics.hang.dump import Call
from npu_plugins.diagnostics.hang.findings import Cause
from npu_plugins.diagnostics.hang.history import History, describe, elements, plain_op
from npu_plugins.diagnostics.hang.places import Source, frame_text, users_frames
from npu_plugins.diagnostics.hang.ranks_text import ranks_text, the_ranks

# Every rank gives as much to these. To others (all_gather of a list, scatter, all_to_all) ranks may give
# different amounts, so that only an unfinished one with different amounts is a fault.
_ALIKE = frozenset(("allreduce", "broadcast", "reduce", "allreducecoalesced"))
_ASPECTS = ("op", "dtype", "shape")
MENDS = {
    "op": "Make all ranks of the group call the same collectives in the same order; look at what chooses "
    "between these lines: a condition on the rank, on the data, or on a parameter that only some ranks use.",
    "dtype": "Convert on all ranks to one dtype before the call; look at what sets it: autocast, a "
    "configuration, a checkpoint that only some ranks loaded.",
    "shape": "Give the same number of elements on all ranks; look at what sets it: a last batch that is "
    "smaller, padding to the longest of each rank's own batch, a parameter that only some ranks have.",
    "root": "Name the same root on all ranks of the group.",
}
"""What to do about calls that differ in an aspect."""
UNDECIDED = "no majority tells which of them is right"
"""Said where as many ranks called one thing as the other, so that all of them are named."""


def find_mismatches(history: History, source: Source) -> list[Cause]:
    """Return the first place of each group at which ranks called different things, the earliest first."""
    found = []
    for group in history.groups():
        for sharing in _same_members(history, group):
            cause = _first_in_group(history, group, sharing, source)
            if cause is not None:
                found.append(cause)
    return sorted(found, key=lambda cause: cause.when)


def find_other_members(history: History) -> list[Cause]:
    """Return groups that some ranks made of other ranks than the others did, under one name."""
    told: dict[str, dict[tuple[int, ...], list[int]]] = {}
    for rank, dump in history.dumps.items():
        for group in dump.groups:
            told.setdefault(group.name, {}).setdefault(group.ranks, []).append(rank)
    found: dict[str, Cause] = {}
    for rank in history.dumps:
        for name in dict.fromkeys(call.group for call in history.open_calls(rank)):
            own = history.members_told(rank, name)
            if own is None or name in found:
                continue
            for theirs, others in told[name].items():
                unlike = [other for other in own if other in others] if theirs != own else []
                if unlike and name not in found:
                    found[name] = _other_members(name, rank, unlike[0], own, theirs)
    return list(found.values())


def _other_members(group: str, rank: int, other: int, own: tuple[int, ...], theirs: tuple[int, ...]) -> Cause:
    return Cause(
        "membership",
        tuple(sorted((rank, other))),
        f"Rank {rank} made group {group!r} of {the_ranks(own)}, but rank {other} of {the_ranks(theirs)}.",
        "Call new_group on every rank with the same ranks in the same order, also for groups it is not in.",
    )


def _same_members(history: History, group: str) -> Iterator[list[int]]:
    """Yield lists of ranks that mean one group by its name."""
    sharing: dict[tuple[int, ...], list[int]] = {}
    for rank in history.callers(group):
        sharing.setdefault(history.members(rank, group), []).append(rank)
    yield from sharing.values()


def _first_in_group(history: History, group: str, ranks: list[int], source: Source) -> Cause | None:
    if len(ranks) < 2:
        return None
    calls = {rank: history.collectives(rank, group) for rank in ranks}
    places = sorted({sequence for made in calls.values() for sequence in made})
    for sequence in places:
        here = {rank: made[sequence] for rank, made in calls.items() if sequence in made}
        for aspect in _ASPECTS:
            sides = _sides(here, aspect, missing=len(here) < len(history.members(ranks[0], group)))
            if len(sides) > 1:
                return _cause(history, aspect, here, sides, source)
    return None


def _sides(calls: Mapping[int, Call], aspect: str, *, missing: bool) -> list[list[int]]:
    """Divide ranks by what they called; one list if there is nothing to be said against it."""
    if aspect == "shape" and not all(plain_op(call.op) in _ALIKE for call in calls.values()):
        stuck = not missing and all(call.state != "completed" for call in calls.values())
        if not stuck or len({bool(call.input_shapes) for call in calls.values()}) > 1:
            return [list(calls)]
    sides: dict[object, list[int]] = {}
    for rank, call in calls.items():
        value = _value(call, aspect)
        if value:
            sides.setdefault(value, []).append(rank)
    return sorted(sides.values(), key=len)


def _value(call: Call, aspect: str) -> object:
    """Return what must agree; nothing where the recorder does not tell, or where ranks need not agree."""
    if aspect == "op":
        return plain_op(call.op)
    if plain_op(call.op) == "barrier":
        return None
    return (
        tuple(sorted(set(call.input_dtypes or call.output_dtypes))) if aspect == "dtype" else elements(call)
    )


def _cause(
    history: History, aspect: str, calls: Mapping[int, Call], sides: list[list[int]], source: Source
) -> Cause:
    odd = _odd(history, calls, sides)
    first = calls[min(odd)]
    label = history.label(min(odd), first.group)
    odd_first = sorted(sides, key=lambda side: (side[0] not in odd, side[0]))
    told = [f"{the_ranks(side)} {_told(calls[side[0]], source)}" for side in odd_first]
    told[0] = f"{the_ranks(odd_first[0])} called {_told(calls[odd_first[0][0]], source)}"
    members = ranks_text(history.members(min(odd), first.group))
    sentence = f"In call number {first.sequence} of {label} (ranks {members}) {', but '.join(told)}"
    return Cause(
        aspect,
        tuple(sorted(odd)),
        sentence + (f"; {UNDECIDED}." if len(odd) == sum(map(len, sides)) else "."),
        MENDS[aspect],
        min(call.created for call in calls.values()),
    )


def _odd(history: History, calls: Mapping[int, Call], sides: list[list[int]]) -> list[int]:
    """Return the ranks that are out of line: all but the most; if no side is the largest, all that did
    something new; if that does not tell either, all."""
    right = sides[-1:] if len(sides[-1]) > len(sides[-2]) else []
    for depth in (1, 2):
        usual = [side for side in sides if not _is_new(history, side[0], calls[side[0]], depth)]
        if not right and len(usual) == 1:
            right = usual
    return sorted(rank for side in sides if side not in right for rank in side)


def _is_new(history: History, rank: int, call: Call, depth: int) -> bool:
    """Tell whether `rank` never before made this call (depth 1), or never after the one before it (2)."""
    made = history.collectives(rank, call.group)
    before = [made[sequence] for sequence in sorted(made) if sequence < call.sequence]
    signatures = [_signature(one) for one in [*before, call]]
    steps = [signatures[place : place + depth] for place in range(len(signatures) - depth + 1)]
    return not steps or steps[-1] not in steps[:-1]


def _signature(call: Call) -> tuple[object, ...]:
    return tuple(_value(call, aspect) for aspect in _ASPECTS)


def _told(call: Call, source: Source) -> str:
    frames = users_frames(call.stack)
    place = f" at {frame_text(frames[0], source)}" if frames else ""
    return f"{call.op or 'a collective'} of {describe(call)}{place}"
