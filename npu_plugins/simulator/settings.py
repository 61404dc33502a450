"""What the environment asks of the simulator."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_plugins.errors import SimulatorError

MAX_NPUS = 64
MIN_HBM_BYTES = 64 << 20  # torch_npu's allocator and one HCCL buffer already take tens of MiB
MAX_HBM_BYTES = 1 << 42
DEFAULT_HBM_BYTES = 64 << 30
MIN_LINK_MEGABYTES = 0.001


@dataclass(frozen=True)
class SlowLink:
    """Two NPUs of this machine, and what the link between them carries each way, in 10^6 bytes a second."""

    npus: tuple[int, int]
    megabytes: float


@dataclass(frozen=True)
class SimulatorSettings:
    """How many NPUs are simulated, and how large they are.

    `npus`: NPUs of this machine. `hbm_bytes`: memory of each, in bytes. `local_ranks`: ranks the launcher
    started on this machine, 0 when not known. `visible`: the physical numbers ASCEND_RT_VISIBLE_DEVICES lets
    this process see, in order, or None when it is unset. `slow_links`: what NPU_SIM_SLOW_LINK slows down.
    """

    npus: int
    hbm_bytes: int = DEFAULT_HBM_BYTES
    local_ranks: int = 0
    visible: tuple[int, ...] | None = None
    slow_links: tuple[SlowLink, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.npus <= MAX_NPUS:
            raise SimulatorError(
                f"NPU_SIM={self.npus} is out of range: set it to the number of NPUs to simulate, 1 to"
                f" {MAX_NPUS}, or unset it to use a real card or none."
            )
        if not MIN_HBM_BYTES <= self.hbm_bytes <= MAX_HBM_BYTES:
            raise SimulatorError(
                f"NPU_SIM_HBM asks for {self.hbm_bytes} bytes an NPU: set it between"
                f" {format_bytes(MIN_HBM_BYTES)} and {format_bytes(MAX_HBM_BYTES)}, for example 32GiB."
            )
        if self.local_ranks > self.npus:
            raise SimulatorError(
                f"This job runs at least {self.local_ranks} ranks on this machine, but NPU_SIM={self.npus}:"
                f" start {self.npus} ranks or fewer, or set NPU_SIM={self.local_ranks} or more."
            )
        for number in self.visible or ():
            if not 0 <= number < self.npus:
                raise SimulatorError(
                    f"ASCEND_RT_VISIBLE_DEVICES names NPU {number}, but NPU_SIM={self.npus} simulates"
                    f" 0 to {self.npus - 1}: name only those, or raise NPU_SIM."
                )
        for link in self.slow_links:
            if link.npus[0] == link.npus[1] or not all(number < self.npus for number in link.npus):
                raise SimulatorError(
                    f"NPU_SIM_SLOW_LINK joins NPU {link.npus[0]} and NPU {link.npus[1]}: name two different"
                    f" ones of 0 to {self.npus - 1}, which NPU_SIM={self.npus} simulates."
                )
        if len(set(self.visible or ())) != len(self.visible or ()):
            listed = ",".join(map(str, self.visible or ()))
            raise SimulatorError(f"ASCEND_RT_VISIBLE_DEVICES={listed} names an NPU twice: name each once.")

    @property
    def visible_npus(self) -> int:
        """Number of NPUs this process sees."""
        return self.npus if self.visible is None else len(self.visible)


def simulator_requested(environ: Mapping[str, str] = os.environ) -> bool:
    """True when NPU_SIM is set; empty counts as unset, as the shell's `NPU_SIM= command` means."""
    return environ.get("NPU_SIM", "").strip() != ""


def settings_from(environ: Mapping[str, str] = os.environ) -> SimulatorSettings:
    """Read NPU_SIM and what goes with it; raise SimulatorError where a value makes no sense."""
    text = environ.get("NPU_SIM", "").strip()
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise SimulatorError(
            f"NPU_SIM={text!r} is not a number: set it to how many NPUs to simulate, for example NPU_SIM=2."
        )
    hbm = environ.get("NPU_SIM_HBM", "").strip()
    return SimulatorSettings(
        npus=int(text),
        hbm_bytes=parse_bytes(hbm) if hbm else DEFAULT_HBM_BYTES,
        local_ranks=_local_ranks(environ),
        visible=_parse_visible(environ.get("ASCEND_RT_VISIBLE_DEVICES")),
        slow_links=_parse_slow_links(environ.get("NPU_SIM_SLOW_LINK", "")),
    )


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Directory of all that the simulator builds: NPU_SIM_CACHE, else a folder in the user's cache."""
    chosen = environ.get("NPU_SIM_CACHE", "").strip()
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(base) if base else Path("~/.cache").expanduser()) / "npu-plugins" / "simulator"


def parse_bytes(text: str) -> int:
    """Read a size such as "64GiB", "512MiB" or "1073741824"; all units are powers of 1024. Returns bytes."""
    from ds_configs.errors import DsConfigError  # here, because few processes that start have a size to read
    from ds_configs.sizes import parse_bytes as parse

    try:
        return parse(text, least=0)
    except DsConfigError:
        raise SimulatorError(
            f"NPU_SIM_HBM={text!r} is not a size: write it as 64GiB, 512MiB or a number of bytes."
        ) from None


def format_bytes(count: int) -> str:
    """Write a number of bytes with the largest unit that keeps it at least 1, for example "64 GiB"."""
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.4g} {unit}"
    return f"{count} B"


def _local_ranks(environ: Mapping[str, str]) -> int:
    """Ranks that torchrun or DeepSpeed says it started on this machine; 0 when there is no launcher."""
    sizes = [environ.get(name, "") for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")]
    local_rank = environ.get("LOCAL_RANK", "")
    known = [int(size) for size in sizes if size.isdecimal()]
    return max([*known, int(local_rank) + 1 if local_rank.isdecimal() else 0])


def _parse_visible(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if not text.strip():
        return ()  # as CANN: set but empty hides every NPU
    fields = [field.strip() for field in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,4}", field) for field in fields):
        raise SimulatorError(
            f"ASCEND_RT_VISIBLE_DEVICES={text!r} is no list of NPU numbers: write it as 0,1,3, or unset it."
        )
    return tuple(int(field) for field in fields)


def _parse_slow_links(text: str) -> tuple[SlowLink, ...]:
    """Read what csrc/hccl/slow_links.cpp reads too, when a communicator is made."""
    links = []
    for word in text.split(",") if text else ():
        found = re.fullmatch(r"([0-9]{1,4})-([0-9]{1,4}):([0-9]{1,9}(?:\.[0-9]{1,9})?)", word)
        if found is None or float(found[3]) < MIN_LINK_MEGABYTES:
            raise SimulatorError(
                f"NPU_SIM_SLOW_LINK={text!r} is no list of slow links: write it as <NPU>-<NPU>:<MB/s>, for"
                f" example 0-1:50, with at least {MIN_LINK_MEGABYTES} MB/s, or unset it."
            )
        links.append(SlowLink((int(found[1]), int(found[2])), float(found[3])))
    return tuple(links)
