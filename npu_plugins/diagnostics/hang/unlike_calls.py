"""Calls that do not fit each other, as HCCL's own error EI0005 tells them.

HCCL that finds such calls fails at once, and a device in error cannot be asked for the last calls of its
ring; what each rank says then, of itself and of one that it differs from, names them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from npu_plugins.diagnostics.hang.dump import RankDump
from npu_plugins.diagnostics.hang.findings import Cause
from npu_plugins.diagnostics.hang.mismatch import MENDS, UNDECIDED
from npu_plugins.diagnostics.hang.ranks_text import capital, the_ranks

_CODE = "EI0005"
_CALL = re.compile(
    r"rank (?P<rank>\d+): Hccl(?P<op>\w+) #(?P<sequence>\d+)"
    r" \(count (?P<count>\d+), (?P<dtype>\w+)(?:, (?P<reduction>[a-z]\w*))?, root (?P<root>\d+)\)"
)


class _Told(NamedTuple):
    """A collective as HCCL describes it."""

    op: str
    elements: int
    dtype: str
    reduction: str
    root: int

    def __str__(self) -> str:
        reduction = f", {self.reduction}" if self.reduction else ""
        return f"{self.op} of {self.elements} {self.dtype}{reduction}, root {self.root}"


def find_unlike_calls(dumps: Mapping[int, RankDump]) -> list[Cause]:
    """Return what ranks called otherwise than the others, as far as their errors tell it."""
    calls: dict[int, _Told] = {}
    for rank, dump in dumps.items():
        if _CODE in dump.error:
            calls |= _read(rank, dump)
    sides: dict[_Told, list[int]] = {}
    for rank, call in sorted(calls.items()):
        sides.setdefault(call, []).append(rank)
    if len(sides) < 2:
        return []
    by_size = sorted(sides, key=lambda call: len(sides[call]))
    usual = by_size[-1]
    known = len(sides[usual]) > len(sides[by_size[-2]])  # else no majority says who is right
    odd = [rank for rank, call in sorted(calls.items()) if call != usual or not known]
    first = next(call for rank, call in sorted(calls.items()) if call != usual)
    told = [f"{the_ranks(sides[first])} called {first}"]
    told += [f"{the_ranks(sides[call])} {call}" for call in by_size if call != first]
    why = f"(HCCL's {_CODE})" + ("" if known else f"; {UNDECIDED}")
    when = min(dumps[rank].taken for rank in calls if rank in dumps)
    sentence = f"{capital(', but '.join(told))} {why}."
    return [Cause(_aspect(first, usual), tuple(odd), sentence, MENDS[_aspect(first, usual)], when)]


def _read(rank: int, dump: RankDump) -> dict[int, _Told]:
    """The calls in one rank's error, by global rank; the first is its own, counted within its group."""
    found = [(int(each["rank"]), _call(each)) for each in _CALL.finditer(dump.error)]
    if not found:
        return {}
    own = found[0][0]
    groups = [group.ranks for group in dump.groups if own < len(group.ranks) and group.ranks[own] == rank]
    calls = {rank: found[0][1]}
    for place, call in found[1:]:
        meant = {ranks[place] for ranks in groups if place < len(ranks)}
        if len(meant) == 1:
            calls[meant.pop()] = call
    return calls


def _call(found: re.Match[str]) -> _Told:
    return _Told(
        found["op"], int(found["count"]), found["dtype"], found["reduction"] or "", int(found["root"])
    )


def _aspect(one: _Told, other: _Told) -> str:
    if one.op != other.op or one.reduction != other.reduction:
        return "op"
    if one.dtype != other.dtype:
        return "dtype"
    return "shape" if one.elements != other.elements else "root"
