"""The calls of all ranks, by group and by rank: who came how far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod

from npu_plugins.diagnostics.hang.dump import Call, RankDump

# One operation has several names, by the function called and by the backend.
_ALIASES = {
    "allgatherbase": "allgatherintotensor",
    "reducescatterbase": "reducescattertensor",
    "alltoallbase": "alltoallsingle",
    "isend": "send",
    "irecv": "recv",
}


def plain_op(op: str) -> str:
    """Return an operation's name in one spelling: `_allgather_base` is `allgatherintotensor`."""
    plain = op.rpartition(":")[2].replace("_", "").lower()
    return _ALIASES.get(plain, plain)


def elements(call: Call) -> tuple[int, ...]:
    """Return how many elements each input has, or each output if there are none: what must agree."""
    return tuple(prod(shape) for shape in call.input_shapes or call.output_shapes)


def describe(call: Call) -> str:
    """Return shapes and dtypes as a report shows them: `Float [4096]`, `2 × BFloat16 [8, 4]`."""
    shapes = call.input_shapes or call.output_shapes
    dtypes = call.input_dtypes or call.output_dtypes
    pairs = Counter(zip(dtypes or ("?",) * len(shapes), map(list_text, shapes), strict=False))
    told = [f"{count} × " * (count > 1) + f"{dtype} {shape}" for (dtype, shape), count in pairs.items()]
    return ", ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")


def list_text(shape: tuple[int, ...]) -> str:
    """Return a shape as a list."""
    return f"[{', '.join(map(str, shape))}]"


class History:
    """The calls of all ranks that gave a dump, found by rank, group and sequence."""

    def __init__(self, dumps: Mapping[int, RankDump], world_size: int) -> None:
        """Sort the calls of `dumps`, which are by rank."""
        self.dumps = dumps
        self.world_size = world_size
        self._groups = {rank: {group.name: group for group in dump.groups} for rank, dump in dumps.items()}
        self._calls: dict[int, dict[str, dict[int, Call]]] = {rank: {} for rank in dumps}
        self._callers: dict[str, list[int]] = {}
        for rank, dump in dumps.items():
            for call in dump.calls:
                if not call.p2p:
                    self._calls[rank].setdefault(call.group, {}).setdefault(call.sequence, call)
            for group in self._calls[rank]:
                self._callers.setdefault(group, []).append(rank)

    def members(self, rank: int, group: str) -> tuple[int, ...]:
        """Return the ranks of `rank`'s group of that name; by the calls, where the dump does not tell."""
        found = self._groups[rank].get(group)
        if found is not None:
            return found.ranks
        if group in ("", "0"):  # torch numbers its groups: the first is the default one, of all ranks
            return tuple(range(self.world_size))
        return tuple(sorted(self._callers.get(group, ())))

    def members_told(self, rank: int, group: str) -> tuple[int, ...] | None:
        """Return the ranks of `rank`'s group of that name as its dump tells them, or None."""
        found = self._groups[rank].get(group)
        return None if found is None else found.ranks

    def label(self, rank: int, group: str) -> str:
        """Return a group's name as a report shows it: its axis, `all ranks`, or torch's name."""
        found = self._groups[rank].get(group)
        if found is not None and found.description and "default" not in found.description:
            return found.description
        return "all ranks" if len(self.members(rank, group)) == self.world_size else f"group {group!r}"

    def groups(self) -> list[str]:
        """Return the names of the groups in which collectives were called."""
        return list(self._callers)

    def callers(self, group: str) -> list[int]:
        """Return the ranks that called collectives in a group of that name."""
        return self._callers.get(group, [])

    def collectives(self, rank: int, group: str) -> Mapping[int, Call]:
        """Return `rank`'s collectives in a group, by sequence, in their order."""
        return self._calls[rank].get(group, {})

    def last(self, rank: int, group: str) -> int:
        """Return the sequence of `rank`'s last collective in a group; 0 if it made none."""
        return max(self.collectives(rank, group), default=0)

    def open_calls(self, rank: int) -> Iterator[Call]:
        """Yield `rank`'s calls that are not complete, oldest first."""
        return (call for call in self.dumps[rank].calls if call.state != "completed")

    def waited(self, rank: int, call: Call) -> float:
        """Return the seconds from an open call's begin to the dump."""
        return max(0.0, self.dumps[rank].taken - call.created)
