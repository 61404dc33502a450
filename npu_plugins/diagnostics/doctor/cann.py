"""Where CANN is, which version, and what of it is there.

Two layouts exist: `ascend-toolkit/<version>` with `latest` beside it (to CANN 8.3), and `cann-<version>` with
`cann` beside it (from 8.5 on). Source: release notes of CANN 8.5.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from npu_plugins.diagnostics.doctor import versions
from npu_plugins.diagnostics.doctor.machine import Machine

DEFAULT_PREFIX = "/usr/local/Ascend"
_HOMES = ("cann", "ascend-toolkit/latest", "cann-[0-9]*", "ascend-toolkit/[0-9]*", "nnae/latest")
_CFG_PART = re.compile(r"^(\w+)_running_version=\[[^:\]]*:([^\]]+)\]", re.MULTILINE)

LIBRARIES = {
    "libascendcl.so": "runtime",
    "libhccl.so": "hccl",
    "libacl_op_compiler.so": "compiler",
    "libge_runner.so": "compiler",
    "libgraph.so": "compiler",
    "libacl_tdt_channel.so": "runtime",
}
"""What libtorch_npu.so needs when it is loaded (torch_npu 2.13), and the part it is in."""


@dataclass(frozen=True)
class Cann:
    """An installation of CANN."""

    home: str
    """Its folder, as the machine names it."""
    version: str | None
    parts: dict[str, str]
    """Versions by part, where a version.cfg tells them."""

    @property
    def series(self) -> str | None:
        """The first two numbers of the version."""
        return versions.series(self.version) if self.version else None

    @property
    def set_env(self) -> str:
        """The script that sets the environment up."""
        home = PurePosixPath(self.home)
        return str((home.parent if home.parent.name == "ascend-toolkit" else home) / "set_env.sh")


def home_in_environment(machine: Machine) -> str | None:
    """Return the folder that set_env.sh has put into this environment, or None."""
    return machine.setting("ASCEND_HOME_PATH") or machine.setting("ASCEND_TOOLKIT_HOME")


def find(machine: Machine) -> Cann | None:
    """Return the CANN of the environment, else one in a usual place; None if there is none."""
    chosen = home_in_environment(machine)
    if chosen:
        return describe(machine, chosen) if machine.path(chosen).is_dir() else None
    prefixes = [DEFAULT_PREFIX]
    if machine.setting("HOME"):
        prefixes.append(str(PurePosixPath(machine.environ["HOME"].strip()) / "Ascend"))
    for prefix in prefixes:
        for place in _HOMES:
            for folder in reversed(machine.glob(prefix, place)):
                if folder.is_dir():
                    return describe(machine, machine.name(folder))
    return None


def describe(machine: Machine, home: str) -> Cann:
    """Return what the files in a folder of CANN say of it."""
    parts = dict(_CFG_PART.findall(machine.read(f"{home}/version.cfg") or ""))
    return Cann(home, _version(machine, home, parts), parts)


def has_library(machine: Machine, cann: Cann, name: str) -> bool:
    """True when a library is in one of the folders that set_env.sh puts into LD_LIBRARY_PATH."""
    places = ("lib64", f"{machine.architecture}-linux/lib64", f"{machine.architecture}-linux/devlib")
    return any(machine.path(f"{cann.home}/{place}/{name}").exists() for place in places)


def kernel_chips(machine: Machine, cann: Cann) -> list[str]:
    """Return the chips that compiled operators are there for, by the names of their folders.

    A toolkit alone has such a folder too, with `ops_oam` in it and nothing else.
    """
    folders = machine.glob(f"{cann.home}/opp/built-in/op_impl/ai_core/tbe/kernel", "ascend*")
    return [
        folder.name
        for folder in folders
        if any(sub.name != "ops_oam" for sub in machine.glob(machine.name(folder), "*"))
    ]


def _version(machine: Machine, home: str, parts: dict[str, str]) -> str | None:
    for pattern in ("ascend_*_install.info", "*-linux/ascend_*_install.info"):
        for path in machine.glob(home, pattern):
            found = value_of(machine.read(machine.name(path)) or "", "version")
            if found:
                return found
    if "toolkit" in parts:
        return parts["toolkit"]
    for name in ("opp/version.info", "share/info/runtime/version.info", "runtime/version.info"):
        text = machine.read(f"{home}/{name}") or ""
        found = value_of(text, "version_dir") or value_of(text, "Version")
        if found:
            return found
    return None


def value_of(text: str, key: str) -> str | None:
    """Return the value of a line `key=value`, without quotes; None if there is none."""
    found = re.search(rf"^\s*{re.escape(key)}\s*=\s*(.+?)\s*$", text, re.MULTILINE)
    return found.group(1).strip("\"'") if found else None
