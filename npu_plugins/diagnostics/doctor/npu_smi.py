"""What `npu-smi info` says of the NPUs: two lines for each chip, and a table of processes.

    | NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
    | Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |

Columns come and go with the version and the chip, but not this order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from npu_plugins.diagnostics.doctor.machine import CommandError, Machine

_TIMEOUT = 60.0  # seconds; a driver under trouble answers late, and a dead one never
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_USAGE = re.compile(r"(\d+)\s*/\s*(\d+)")


@dataclass(frozen=True)
class Process:
    """A process that uses an NPU."""

    npu: int
    chip: int
    pid: int
    name: str
    memory: int
    """MiB."""


@dataclass(frozen=True)
class Chip:
    """One chip; most cards have one, A3 has two."""

    npu: int
    chip: int
    name: str
    health: str
    """OK, Warning, Alarm, Critical or UNKNOWN."""
    used: int
    """MiB of its memory."""
    total: int
    """MiB of its memory; 0 if not shown."""

    @property
    def label(self) -> str:
        """How a report names it."""
        return f"NPU {self.npu}" if self.chip == 0 else f"NPU {self.npu} chip {self.chip}"


@dataclass(frozen=True)
class Overview:
    """All that npu-smi shows."""

    version: str | None
    chips: tuple[Chip, ...]
    processes: tuple[Process, ...]


def overview(machine: Machine) -> Overview:
    """Ask npu-smi.

    Raises:
        CommandError: it is not there, fails, or does not answer.
    """
    program = machine.which("npu-smi") or "/usr/local/bin/npu-smi"
    if not machine.path(program).exists():
        raise CommandError("npu-smi is not in PATH")
    return parse(machine.run([program, "info"], _TIMEOUT))


def parse(text: str) -> Overview:
    """Read the output of `npu-smi info`."""
    found = re.search(r"npu-smi\s+(\S+)\s+Version", text)
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.strip().startswith("|")
    ]
    return Overview(found.group(1) if found else None, tuple(_chips(rows)), tuple(_processes(rows)))


def _chips(rows: list[list[str]]) -> list[Chip]:
    chips = []
    for first, second in zip(rows, rows[1:], strict=False):
        if len(first) < 3 or len(second) < 3 or not _BUS.fullmatch(second[1]):
            continue
        number, _, name = first[0].partition(" ")
        chip = second[0].split()[0] if second[0] else "0"
        if not (number.isdecimal() and chip.isdecimal()):
            continue
        used, total = _memory(second[2])
        chips.append(Chip(int(number), int(chip), name.strip(), first[1], used, total))
    return chips


def _memory(cell: str) -> tuple[int, int]:
    """Return used and total MiB: of the HBM, the last pair, where there is one, else of the DDR."""
    usages = [(int(used), int(total)) for used, total in _USAGE.findall(cell)]
    with_memory = [usage for usage in usages if usage[1] > 0]
    return with_memory[-1] if with_memory else (0, 0)


def _processes(rows: list[list[str]]) -> list[Process]:
    processes = []
    for row in rows:
        place = row[0].split()
        if len(row) < 4 or len(place) != 2 or not all(x.isdecimal() for x in (*place, row[1], row[3])):
            continue
        processes.append(Process(int(place[0]), int(place[1]), int(row[1]), row[2], int(row[3])))
    return processes
