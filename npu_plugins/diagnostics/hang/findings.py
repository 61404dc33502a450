"""What the dumps of all ranks amount to, as data: the text and the JSON of a report are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from npu_plugins.diagnostics.codes import Explanation
from npu_plugins.diagnostics.errors import DiagnosticsError
from npu_plugins.diagnostics.hang.dump import Frame

ABSENCES = ("killed", "failed", "left", "silent")
KINDS = (
    "killed",
    "failed",
    "out of memory",
    "exception",
    "left",
    "membership",
    "op",
    "shape",
    "dtype",
    "root",
    "silent",
    "not entered",
    "slow",
    "deadlock",
    "transfer",
    "consequence",
    "nothing found",
)


@dataclass(frozen=True)
class Absence:
    """A rank that gave no dump, and what others know of its end."""

    kind: str
    """`killed` by a signal; `failed`: ended with a status that is not 0; `left`: ended with status 0, or
    said that it was done; `silent`: nobody knows, it does not answer."""
    detail: str = ""
    """What a sentence takes in: `SIGKILL`, `status 3`, `no answer for 10 s`."""
    when: float = 0.0
    """Seconds since 1970 when that was seen, by the clock of the host that saw it; 0 if not known."""
    host: str = ""
    pid: int | None = None

    def __post_init__(self) -> None:
        """Refuse a kind that no report knows."""
        if self.kind not in ABSENCES:
            raise DiagnosticsError(f"An absence is {self.kind!r}; it is one of {', '.join(ABSENCES)}")

    @property
    def on_request(self) -> bool:
        """Whether a signal asked it to end, of which a program may make an exit status: 128 + its number."""
        signals = {
            "killed": ("SIGHUP", "SIGINT", "SIGTERM"),
            "failed": ("status 129", "status 130", "status 143"),
        }
        return self.detail in signals.get(self.kind, ())


@dataclass(frozen=True)
class Cause:
    """One fault, most likely what the rest follows from."""

    kind: str
    """One of `KINDS`. `op`, `shape`, `dtype`, `root`: ranks called different things."""
    ranks: tuple[int, ...]
    """Whom it is to be looked for at."""
    sentence: str
    """What was found, with the values seen."""
    mend: str
    """What to do."""
    when: float = 0.0
    """Seconds since 1970, by the clock of the host of the lowest rank; 0 if not known."""

    def __post_init__(self) -> None:
        """Refuse a kind that no report knows."""
        if self.kind not in KINDS:
            raise DiagnosticsError(f"A cause is of kind {self.kind!r}; it is one of {', '.join(KINDS)}")


@dataclass(frozen=True)
class Wait:
    """Ranks that wait in the same call, each of them in its own group of one purpose."""

    ranks: tuple[int, ...]
    call: str
    """As the report shows it: `all_reduce number 57 of dp`."""
    what: str
    """Shapes and dtypes: `Float [4096]`."""
    groups: int
    """How many groups these ranks wait in."""
    waits_for: tuple[int, ...]
    """Ranks that did not come, of all those groups; empty if all came."""
    seconds: float
    """The longest of their waits."""
    place: tuple[Frame, ...]
    """Where one of them called it, the user's own line first."""
    text: str = ""
    """The source of that line, where it can be read."""


@dataclass(frozen=True)
class Place:
    """Ranks whose program stands at the same place."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    """The user's own line first, then its callers; empty if not known."""
    inside: str = ""
    """The function of a library that the user's line called; empty if it stands there itself."""
    text: str = ""
    """The source of the user's line, where it can be read."""
    error: str = ""
    """The exception that ends these ranks."""


@dataclass(frozen=True)
class Findings:
    """What is to be told of a job that hung or failed."""

    reason: str
    """Why the report is made, of `dump.REASONS`."""
    world_size: int
    hosts: Mapping[str, tuple[int, ...]]
    """Ranks by host, of those that are known."""
    device: str
    """What the ranks run on: `npu (simulated)`."""
    timeout: float
    """Seconds that a wait may take; 0 if not known."""
    waited: float
    """The longest wait in seconds."""
    taken: float
    """Seconds since 1970 of the first dump."""
    causes: tuple[Cause, ...]
    """The first is what the others follow from."""
    waits: tuple[Wait, ...] = ()
    places: tuple[Place, ...] = ()
    """Where the ranks are that do not wait in a call of the ring."""
    absent: Mapping[int, Absence] = field(default_factory=dict)
    memory: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Bytes of the device by word, for the ranks that ran out of it."""
    skews: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each host's clock is ahead of the first host's, as the calls tell; empty for one host."""
    explanations: tuple[Explanation, ...] = ()
    """What the error codes in the ranks' errors mean."""
    notes: tuple[str, ...] = ()
    """What the reader must know of the report itself: a rank whose dump cannot be read, say."""


def ended_for_another(absent: Mapping[int, Absence]) -> set[int]:
    """Return the ranks that were asked to end because another one is gone without a word."""
    silent = any(absence.kind == "silent" for absence in absent.values())
    return {rank for rank, absence in absent.items() if silent and absence.on_request}
