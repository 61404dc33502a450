"""What was measured, as data: a row for each size, and what stands above and below the rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from npu_plugins.diagnostics.strict_json import strict_json


@dataclass(frozen=True)
class Timing:
    """One way of calling a collective: out of place or in place."""

    microseconds: float
    algbw: float
    """GB/s, 10^9 bytes: size / time."""
    busbw: float
    """GB/s, comparable with the speed of a link (nccl-tests, doc/PERFORMANCE.md)."""
    wrong: int | None
    """Elements that were not as expected, on all ranks; None if nothing was checked."""


@dataclass(frozen=True)
class Row:
    """One size of one collective along one axis."""

    collective: str
    axis: str
    """``world``, or an axis of the mesh."""
    ranks: int
    """In each group of the axis."""
    groups: int
    """That run at once; the slowest one's time is told."""
    size: int
    """Bytes, as nccl-tests counts them."""
    count: int
    """Elements that the call is given."""
    dtype: str
    redop: str
    """``none`` where nothing is reduced."""
    root: int
    """-1 where there is none."""
    out_of_place: Timing
    in_place: Timing | None
    """None where torch has no such call."""

    @property
    def timings(self) -> list[Timing]:
        """Those that there are."""
        return [self.out_of_place] if self.in_place is None else [self.out_of_place, self.in_place]


@dataclass(frozen=True)
class Report:
    """A whole run."""

    backend: str
    device: str
    """Its kind and name, such as ``npu (Ascend910B3)``."""
    simulated: bool
    """Times are a CPU's, whatever the device says."""
    world_size: int
    iterations: int
    versions: dict[str, str]
    rows: list[Row] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """What the backend does not do, a sentence each."""

    @property
    def wrong(self) -> int:
        """Elements that were not as expected in all rows."""
        return sum(timing.wrong or 0 for row in self.rows for timing in row.timings)

    def to_json(self) -> str:
        """Return everything as JSON."""
        return strict_json(asdict(self)) + "\n"

    def to_csv(self) -> str:
        """Return a line for each row; the fields of the two timings have their names before theirs."""
        flat = [_flat(row) | {"simulated": self.simulated, "backend": self.backend} for row in self.rows]
        text = io.StringIO()
        names = list(dict.fromkeys(name for line in flat for name in line))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)
        return text.getvalue()


def average_bus_bandwidth(rows: Iterable[Row]) -> float:
    """Return nccl-tests' last line: the mean of all bus bandwidths of the table; 0 for no rows."""
    speeds = [timing.busbw for row in rows for timing in row.timings]
    return sum(speeds) / len(speeds) if speeds else 0.0


def _flat(row: Row) -> dict[str, object]:
    whole = asdict(row)
    for way in ("out_of_place", "in_place"):
        timing = whole.pop(way)
        names = ("microseconds", "algbw", "busbw", "wrong")
        whole |= {f"{way}_{name}": "" if timing is None else timing[name] for name in names}
    return whole
