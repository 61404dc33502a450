"""How fast a machine's links are, as `npu-plugins comm-perf --links FILE` measured them.

The file is the interface: ``{"measured_links": 1, "axes": {AXIS: {"ranks": N, "collectives": {NAME:
SPEED}}}}``, where SPEED has the fields of `LinkSpeed`; it also tells where it is from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ds_configs.errors import DsConfigError

VERSION = 1
_MEND = "measure again with npu-plugins comm-perf --op all_reduce,all_gather,reduce_scatter --links FILE"


@dataclass(frozen=True)
class LinkSpeed:
    """What a collective takes: ``latency + bytes / bandwidth`` seconds.

    Raises:
        DsConfigError: a value is not such a number.
    """

    latency: float
    """Seconds of the smallest message."""
    bandwidth: float
    """Bytes a second of a large one; bytes as nccl-tests counts the size of a collective."""
    largest: int
    """Bytes of the largest message that was measured."""
    error: float
    """How far the two numbers are from the worst measurement, as a part of it."""

    def __post_init__(self) -> None:
        for name, least in (("latency", 0.0), ("bandwidth", 1.0), ("largest", 1), ("error", 0.0)):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not least <= value < math.inf
            ):
                raise DsConfigError(
                    f"the {name} of a link is {value!r}, which is no number from {least:g}; {_MEND}"
                )

    def seconds(self, size: float) -> float:
        """Return how long a message of `size` bytes takes."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class AxisLinks:
    """The collectives of one axis of the mesh, or of all ranks: ``world``."""

    ranks: int
    collectives: Mapping[str, LinkSpeed]


@dataclass(frozen=True)
class MeasuredLinks:
    """All that was measured."""

    axes: Mapping[str, AxisLinks]
    backend: str = ""
    device: str = ""
    simulated: bool = False
    """Speeds are a CPU's."""
    source: str = field(default="the links", compare=False)
    """In words."""

    def speed(self, collective: str, *axes: str) -> LinkSpeed:
        """Return the speed of `collective` along the first of `axes` that was measured.

        Raises:
            DsConfigError: along none of them.
        """
        for axis in axes:
            if axis in self.axes and collective in self.axes[axis].collectives:
                return self.axes[axis].collectives[collective]
        told = [f"{name} of {axis}" for axis, links in self.axes.items() for name in links.collectives]
        raise DsConfigError(
            f"{self.source} has no {collective} of {' or '.join(axes)}, only {', '.join(told) or 'nothing'}; "
            f"{_MEND}"
        )

    def to_json(self) -> str:
        """Return the file's text."""
        axes = {
            axis: {
                "ranks": links.ranks,
                "collectives": {name: vars(speed) for name, speed in links.collectives.items()},
            }
            for axis, links in self.axes.items()
        }
        about = {"backend": self.backend, "device": self.device, "simulated": self.simulated}
        return json.dumps({"measured_links": VERSION, **about, "axes": axes}, indent=1) + "\n"

    @classmethod
    def from_file(cls, file: Path) -> MeasuredLinks:
        """Read a file.

        Raises:
            DsConfigError: it cannot be read, or is no such file.
        """
        try:
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if found["measured_links"] != VERSION:
                raise DsConfigError(f"{file} is of version {found['measured_links']}, not {VERSION}; {_MEND}")
            axes = {
                axis: AxisLinks(
                    links["ranks"], {name: LinkSpeed(**speed) for name, speed in links["collectives"].items()}
                )
                for axis, links in found["axes"].items()
            }
        except OSError as error:
            raise DsConfigError(f"{file} cannot be read ({error.strerror}); {_MEND}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, DsConfigError):
                raise
            raise DsConfigError(
                f"{file} holds no measured links ({type(error).__name__}: {error}); {_MEND}"
            ) from error
        about = {name: found[name] for name in ("backend", "device", "simulated") if name in found}
        return cls(axes, **about, source=str(file))
