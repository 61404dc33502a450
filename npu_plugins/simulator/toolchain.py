"""The compiler, processor and installed packages a build of the simulator depends on.

Nothing here imports torch or torch_npu: a build must end before torch_npu is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from npu_plugins.errors import SimulatorError

_CPU_FIELDS = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")


@dataclass(frozen=True)
class Toolchain:
    """Where the compiler and the packages with headers and libraries are."""

    compiler: tuple[str, ...]  # the command, for example ("g++",) or ("ccache", "/usr/bin/g++")
    torch: Path
    torch_npu: Path

    def stamp(self) -> str:
        """Name all that could change the result, by file times and sizes: cheap enough for every start."""
        parts = [sys.version, sysconfig.get_config_var("EXT_SUFFIX") or "", cpu_model(), *self.compiler]
        programs = [Path(word) for word in self.compiler if os.path.isabs(word)]
        for path in (*programs, self.torch / "version.py", self.torch_npu / "version.py"):
            status = path.stat()
            parts.append(f"{path}:{status.st_mtime_ns}:{status.st_size}")
        return "\n".join(parts)

    def versions(self) -> str:
        """Name all that could change an object file, by content."""
        parts = [sysconfig.get_config_var("EXT_SUFFIX") or sys.version, cpu_model(), self.compiler_version()]
        parts += [hashlib.sha256((path / "version.py").read_bytes()).hexdigest() for path in self._packages()]
        return "\n".join(parts)

    def identity(self) -> str:
        """Name all that could change a library: the versions, and the folders in its run path."""
        return "\n".join((self.versions(), *map(str, self._packages())))

    def _packages(self) -> tuple[Path, Path]:
        return self.torch, self.torch_npu

    def compiler_version(self) -> str:
        """Return what the compiler says it is: its name and version."""
        try:
            said = subprocess.run(
                [*self.compiler, "--version"], capture_output=True, text=True, timeout=60, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SimulatorError(
                f"The C++ compiler {shlex.join(self.compiler)!r} does not run ({error}): install g++ 11 or"
                " newer, or set CXX to one that works."
            ) from error
        return said.stdout.strip().partition("\n")[0]

    def torch_includes(self) -> tuple[Path, ...]:
        """Include directories of torch and Python, for the kernels that are written against them."""
        include = self.torch / "include"
        return include, include / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_paths()["include"])

    def cann_includes(self) -> tuple[Path, ...]:
        """Include directories of torch_npu and of the CANN headers its wheel brings."""
        include = self.torch_npu / "include"
        return include, include / "third_party" / "acl" / "inc", include / "third_party" / "hccl" / "inc"


def find_toolchain() -> Toolchain:
    """Find the compiler, torch and torch_npu, or raise SimulatorError saying which is missing."""
    if sys.platform != "linux":
        raise SimulatorError(
            f"NPU_SIM needs Linux, for which torch_npu is built, and this is {platform.system()}: unset"
            " NPU_SIM to run on the CPU, or use a Linux machine or container."
        )
    return Toolchain(compiler=_find_compiler(), torch=_package("torch"), torch_npu=_package("torch_npu"))


def cpu_model() -> str:
    """Name the processor and its instruction sets, since the libraries are compiled for this very one."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            lines = file.read(8192).splitlines()
    except OSError:
        return platform.machine()
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and name.strip() in _CPU_FIELDS:
            found.setdefault(name.strip(), value.strip())
    return f"{platform.machine()} {sorted(found.items())}"


def native_flag() -> str:
    """Return the flag that compiles for this machine's processor."""
    return "-march=native" if re.fullmatch(r"x86_64|i.86", platform.machine()) else "-mcpu=native"


def _find_compiler() -> tuple[str, ...]:
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in [chosen] if chosen else [["g++"], ["c++"], ["clang++"]]:
        if shutil.which(command[0]):
            return tuple(shutil.which(word) or word for word in command)  # whole paths: stamp() needs them
    looked_for = f"CXX={os.environ['CXX']!r}" if chosen else "g++, c++ and clang++"
    raise SimulatorError(
        f"NPU_SIM needs a C++20 compiler to build the simulated CANN, and {looked_for} is not in PATH:"
        " install g++ 11 or newer (Debian, Ubuntu: apt install g++), or set CXX."
    )


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SimulatorError(
            f"Simulated NPUs need {name}, which is not installed for this Python ({platform.python_version()}"
            f" on {platform.system()} {platform.machine()}): install the torch and torch_npu pair of"
            " requirements/tested.txt, or unset NPU_SIM to run without an NPU."
        )
    return Path(spec.submodule_search_locations[0])
