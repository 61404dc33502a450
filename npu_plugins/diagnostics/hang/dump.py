"""What one rank knows when a job hangs or fails, as JSON; the report is made of the dumps of all ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from npu_plugins.diagnostics.errors import DiagnosticsError

REASONS = ("timeout", "exception", "peer lost", "signal", "asked")
STATES = ("scheduled", "started", "completed")


@dataclass(frozen=True)
class Frame:
    """One line of a call stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Call:
    """One collective or point-to-point call, as the ring of its rank keeps it."""

    group: str
    """Name of the process group; its `Group` has the same name."""
    sequence: int
    """Place among the collectives of the group, or among its point-to-point calls, from 1."""
    p2p: bool
    op: str
    """As torch.distributed names it: all_reduce, broadcast, send. Empty if the recorder does not tell."""
    input_shapes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_shapes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[str, ...]
    state: str
    """One of `STATES`. A recorder without events of the device knows no "started"."""
    created: float
    """Seconds since 1970, by the clock of the rank's host."""
    stack: tuple[Frame, ...] = ()
    """Innermost frame first."""
    peer: int | None = None
    """Global rank of the other side of a point-to-point call, where that is known."""

    def __post_init__(self) -> None:
        """Refuse a state that no report knows."""
        if self.state not in STATES:
            raise DiagnosticsError(f"The state of a call is {self.state!r}; it is one of {', '.join(STATES)}")


@dataclass(frozen=True)
class Group:
    """A process group that the rank is in."""

    name: str
    description: str
    """What it is for, such as the axis `tp` of a mesh; empty if nobody said."""
    ranks: tuple[int, ...]
    """Global ranks, in the order of the group."""


@dataclass(frozen=True)
class RankDump:
    """The dump of one rank."""

    rank: int
    world_size: int
    host: str
    pid: int
    reason: str
    """Why it was taken, one of `REASONS`."""
    taken: float
    """Seconds since 1970, by the clock of the rank's host."""
    waited: float = 0.0
    """Seconds that this rank has waited in its oldest call that is not complete; 0 if it waits in none."""
    timeout: float = 0.0
    """Seconds that a wait may take in this job; 0 if not known."""
    device: str = ""
    """As the report shows it: `npu:0`, `cpu`, and `npu:0 (simulated)` where there is no card."""
    backend: str = ""
    error: str = ""
    """The exception that ends this rank, `OutOfMemoryError: NPU out of memory. ...`; empty if none does."""
    error_stack: tuple[Frame, ...] = ()
    """Where it was raised, innermost frame first."""
    stacks: Mapping[str, tuple[Frame, ...]] = field(default_factory=dict)
    """By name of thread (`MainThread` is where the program runs), innermost frame first."""
    groups: tuple[Group, ...] = ()
    calls: tuple[Call, ...] = ()
    """The last calls, oldest first."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the device by word: free, total, allocated, reserved; empty where the device tells none."""

    def __post_init__(self) -> None:
        """Refuse a reason that no report knows."""
        if self.reason not in REASONS:
            raise DiagnosticsError(
                f"The reason of a dump is {self.reason!r}; it is one of {', '.join(REASONS)}"
            )

    def to_json(self) -> str:
        """Return the dump as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankDump:
        """Read what `to_json` wrote.

        Raises:
            DiagnosticsError: the text is cut off, or is no dump.
        """
        try:
            found: dict[str, Any] = json.loads(text)
            found["error_stack"] = _frames(found["error_stack"])
            found["stacks"] = {name: _frames(stack) for name, stack in found["stacks"].items()}
            found["groups"] = tuple(
                Group(**group | {"ranks": tuple(group["ranks"])}) for group in found["groups"]
            )
            found["calls"] = tuple(_call(call) for call in found["calls"])
            return cls(**found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DiagnosticsError(
                f"This is no dump of a rank ({type(error).__name__}: {error}); take one of this version"
            ) from error


def _frames(stack: Sequence[Mapping[str, Any]]) -> tuple[Frame, ...]:
    return tuple(Frame(**frame) for frame in stack)


def _call(found: Mapping[str, Any]) -> Call:
    shapes = {
        name: tuple(tuple(shape) for shape in found[name]) for name in ("input_shapes", "output_shapes")
    }
    dtypes = {name: tuple(found[name]) for name in ("input_dtypes", "output_dtypes")}
    return Call(**{**found, **shapes, **dtypes, "stack": _frames(found["stack"])})
