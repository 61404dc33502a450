"""What is known of versions and variables: the JSON files of `data/`, each with its sources."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from importlib import resources
from typing import Any

from npu_plugins.diagnostics.doctor import versions


@dataclass(frozen=True)
class Pair:
    """One row of torch_npu's table of versions."""

    torch_npu: str
    torch: str
    cann: str
    release: str
    """TorchNPU's own number, such as 7.2.0 or 26.1.0: its packages carry PyTorch's."""


@dataclass(frozen=True)
class Drivers:
    """The drivers that a CANN runs with."""

    cann: str
    """Series, such as 8.5."""
    drivers: tuple[str, ...]
    """Series, oldest first."""
    whole_list: bool
    """True where a table of Huawei's names all of them; False where only one that it came with is known."""
    released_with: str


@dataclass(frozen=True)
class Chip:
    """A kind of NPU."""

    kernels: str
    """Folder of its compiled operators in CANN."""
    package: str
    """What the package with these operators is called after."""


@dataclass(frozen=True)
class Compatibility:
    """All that `compatibility.json` says."""

    content: dict[str, Any]

    def row(self, torch_npu: str) -> Pair | None:
        """Return the row of a version of torch_npu, without its local part; None if there is none."""
        wanted = torch_npu.partition("+")[0]
        rows = (Pair(**row) for row in self.content["torch_npu"])
        return next((row for row in rows if row.torch_npu == wanted), None)

    def rows_for(self, torch: str) -> list[Pair]:
        """Return the rows of a version of torch, newest first."""
        release = torch.partition("+")[0]
        return [Pair(**row) for row in self.content["torch_npu"] if row["torch"] == release]

    def also_with(self, release: str) -> list[str]:
        """Return the versions of CANN that a release of TorchNPU is said to run with, besides its own."""
        return self.content["compatible_cann"].get(release, [])

    def pythons(self, torch: str) -> list[str] | None:
        """Return the Pythons that torch_npu has for a version of torch; None if that is not known."""
        return self.content["python"].get(torch.partition("+")[0])

    def drivers(self, cann: str) -> Drivers | None:
        """Return the drivers of a version of CANN; None if that is not known."""
        for row in self.content["drivers"]:
            if row["cann"] == versions.series(cann):
                return Drivers(**{**row, "drivers": tuple(row["drivers"])})
        return None

    def chip(self, name: str | None = None, pci: str | None = None) -> Chip | None:
        """Return the kind of a chip by the name that npu-smi shows, or by its PCI device number."""
        for row in self.content["chips"]:
            if (name and re.fullmatch(row["names"], name)) or (pci and row.get("pci") == pci):
                return Chip(row["kernels"], row["package"])
        return None


@functools.cache
def compatibility() -> Compatibility:
    """Read the table of versions."""
    return Compatibility(_read("compatibility.json"))


@functools.cache
def variables() -> dict[str, Any]:
    """Read the table of environment variables: `hccl` with their limits, and `mistaken` with what to use."""
    return _read("variables.json")


def _read(name: str) -> dict[str, Any]:
    package = resources.files("npu_plugins.diagnostics.doctor")
    return json.loads((package / "data" / name).read_text(encoding="utf-8"))
