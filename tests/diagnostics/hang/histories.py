"""Histories of jobs on meshes of every shape, played on paper, with one fault or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from npu_plugins.diagnostics.hang.dump import Call, Frame, Group, RankDump
from npu_plugins.diagnostics.hang.findings import Absence

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
USER = "/home/user/train.py"
SLEEPING_LINE = 7
LIMIT = 300.0
FAULTS = ("sleep", "kill", "raise", "out of memory", "leave", "shape", "dtype", "op", "skip", "swap")


@dataclass(frozen=True)
class Planned:
    """One call of one rank's program."""

    op: str
    axis: str
    line: int
    shape: tuple[int, ...] = (8,)
    dtype: str = "Float"
    peer: int | None = None

    def text(self) -> str:
        """The source of its line."""
        return f"dist.{self.op}(tensor, group=mesh.group('{self.axis}'))"


@dataclass(frozen=True)
class Fault:
    """What goes wrong, at which rank, before or in which of its calls."""

    kind: str
    rank: int
    place: int


@dataclass
class Job:
    """A mesh, a number of steps, and how far hosts run ahead of their devices."""

    tp: int
    dp: int
    pp: int
    steps: int
    ahead: int = 1
    hosts: int = 1
    skew: float = 0.0
    """Seconds that the second host's clock is ahead of the first's."""
    fault: Fault | None = None
    moves: int = 10**6
    """After so many moves of all ranks together the dump is taken."""
    made: dict[int, list[Call]] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    now: float = 100.0

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.dp * self.pp

    def groups(self, rank: int) -> dict[str, Group]:
        """Return the groups of `rank` by axis."""
        t, d, p = rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)
        at = lambda t, d, p: t + self.tp * (d + self.dp * p)  # noqa: E731
        members = {
            "tp": tuple(at(other, d, p) for other in range(self.tp)),
            "dp": tuple(at(t, other, p) for other in range(self.dp)),
            "pp": tuple(at(t, d, other) for other in range(self.pp)),
        }
        found = {
            axis: Group(f"{axis}{ranks[0]}", axis, ranks) for axis, ranks in members.items() if len(ranks) > 1
        }
        return {"world": Group("0", "default_pg", tuple(range(self.world))), **found}

    def program(self, rank: int) -> list[Planned]:
        """Return the calls that `rank` means to make, its own fault included."""
        groups, calls = self.groups(rank), []
        for _ in range(self.steps):
            stages = groups["pp"].ranks if "pp" in groups else (rank,)
            stage = stages.index(rank)
            if stage:
                calls.append(Planned("recv", "pp", 20, (4, 8), peer=stages[stage - 1]))
            if "tp" in groups:
                calls += [Planned("all_reduce", "tp", 21, (4, 8)), Planned("all_gather", "tp", 22, (2, 8))]
            if stage + 1 < len(stages):
                calls.append(Planned("send", "pp", 23, (4, 8), peer=stages[stage + 1]))
            if "dp" in groups:
                calls += [Planned("all_reduce", "dp", 24, (64,)), Planned("broadcast", "dp", 25, (16,))]
            calls.append(Planned("all_reduce", "world", 26, ()))
        return self._with_fault(rank, [*calls, Planned("barrier", "world", 27, ())])

    def collectives(self, rank: int) -> list[int]:
        """Return the places of the collectives in `rank`'s program without a fault, but for the barrier."""
        calls = replace(self, fault=None).program(rank)[:-1]
        return [place for place, call in enumerate(calls) if call.peer is None]

    def play(self) -> None:
        """Let all ranks make their calls until nobody can go on, or until the moves are used up."""
        programs = {rank: self.program(rank) for rank in range(self.world)}
        self.made, self.done = {rank: [] for rank in programs}, dict.fromkeys(programs, 0)
        moved = True
        while moved and self.moves:
            moved = False
            for rank, program in programs.items():
                for step in (self._begin(rank, program), self._finish(rank)):
                    if step and self.moves:
                        moved = True
                        self.moves -= 1
                        self.now += 0.001

    def is_done(self) -> bool:
        """Tell whether all ranks made all their calls, in spite of the fault."""
        return (
            all(self.done[rank] == len(self.program(rank)) for rank in self.made) and not self._ends_a_rank()
        )

    def _ends_a_rank(self) -> bool:
        return self.fault is not None and self.fault.kind in FAULTS[:5]

    def dumps(self, reason: str = "timeout") -> tuple[dict[int, RankDump], dict[int, Absence]]:
        """Return what the ranks dump after the time limit, and the ranks that do not."""
        taken = self.now + (LIMIT + 5 if reason != "asked" else 0.1)
        fault, absent = self.fault, {}
        if fault is not None and fault.kind in ("kill", "leave"):
            ended = {"kill": Absence("killed", "SIGKILL", self.now), "leave": Absence("left", "status 0")}
            absent[fault.rank] = ended[fault.kind]
        return {rank: self._dump(rank, reason, taken) for rank in self.made if rank not in absent}, absent

    def host(self, rank: int) -> int:
        """Return the host of `rank`."""
        return rank * self.hosts // self.world

    def _with_fault(self, rank: int, calls: list[Planned]) -> list[Planned]:
        if self.fault is None or self.fault.rank != rank:
            return calls
        place = self.fault.place
        changed = {"shape": {"shape": (3, 3, 3)}, "dtype": {"dtype": "Half"}, "op": {"op": "reduce"}}
        if self.fault.kind in changed:
            calls[place] = replace(calls[place], **changed[self.fault.kind])
        elif self.fault.kind == "skip":
            del calls[place]
        elif self.fault.kind == "swap":
            calls[place], calls[place + 1] = calls[place + 1], calls[place]
        else:
            del calls[place:]
        return calls

    def _begin(self, rank: int, program: list[Planned]) -> bool:
        calls = self.made[rank]
        if len(calls) == len(program) or len(calls) - self.done[rank] >= self.ahead:
            return False
        planned, group = program[len(calls)], self.groups(rank)[program[len(calls)].axis]
        p2p = planned.peer is not None
        sequence = 1 + sum(call.group == group.name and call.p2p == p2p for call in calls)
        stack = (Frame(TORCH, 99, planned.op), Frame(USER, planned.line, "step"), Frame(USER, 90, "main"))
        shapes, dtypes = ((), ()) if planned.op == "barrier" else ((planned.shape,), (planned.dtype,))
        created = self.now + self.skew * self.host(rank)
        data = (shapes, dtypes, shapes, dtypes, "scheduled", created, stack, planned.peer)
        call = Call(group.name, sequence, p2p, planned.op, *data)
        calls.append(call)
        return True

    def _finish(self, rank: int) -> bool:
        """Complete the call that `rank`'s device is in, if all its ranks are in the same."""
        call = self._current(rank)
        if call is None:
            return False
        others = list(self._partners(rank, call))
        if any(other is None or not _fits(call, other) for other in others):
            return False
        members = self._members(rank, call)
        for member in members:
            place = self.done[member]
            self.made[member][place] = replace(self.made[member][place], state="completed")
            self.done[member] += 1
        return True

    def _current(self, rank: int) -> Call | None:
        calls = self.made[rank]
        return calls[self.done[rank]] if self.done[rank] < len(calls) else None

    def _members(self, rank: int, call: Call) -> tuple[int, ...]:
        if call.peer is not None:
            return (rank, call.peer)
        return next(group.ranks for group in self.groups(rank).values() if group.name == call.group)

    def _partners(self, rank: int, call: Call) -> Iterator[Call | None]:
        for member in self._members(rank, call):
            theirs = self._current(member)
            same = theirs is not None and (theirs.group, theirs.p2p) == (call.group, call.p2p)
            yield theirs if same and (call.p2p or theirs.sequence == call.sequence) else None

    def _dump(self, rank: int, reason: str, taken: float) -> RankDump:
        calls, error, error_stack = self.made[rank], "", ()
        stack = calls[-1].stack if calls else ()
        fault = self.fault if self.fault is not None and self.fault.rank == rank else None
        if fault is not None and fault.kind == "sleep":
            stack = (Frame(USER, SLEEPING_LINE, "load"), Frame(USER, 90, "main"))
        elif fault is not None and fault.kind in ("raise", "out of memory"):
            error_stack = (Frame(USER, 30, "step"),)
            error = {
                "raise": "ValueError: no such token",
                "out of memory": "OutOfMemoryError: out of memory",
            }[fault.kind]
        return RankDump(
            rank, self.world, f"node-{self.host(rank) + 1}", 1000 + rank, reason,
            taken + self.skew * self.host(rank), timeout=LIMIT, device=f"npu:{rank} (simulated)",
            error=error, error_stack=error_stack, stacks={"MainThread": stack},
            groups=tuple(self.groups(rank).values()), calls=tuple(calls),
        )  # fmt: skip


def source(frame: Frame) -> str:
    """Return the text of a line of the program on paper."""
    if frame.line == SLEEPING_LINE:
        return "time.sleep(1000)"
    return {30: "raise ValueError", 90: "step()"}.get(frame.line, "dist.call(tensor)")


def _fits(one: Call, other: Call) -> bool:
    if one.p2p:
        return one.op != other.op or one is other
    return (one.op, one.input_shapes, one.input_dtypes) == (other.op, other.input_shapes, other.input_dtypes)
