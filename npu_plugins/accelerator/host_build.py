"""Compile DeepSpeed's host-only C++ ops once a machine, safely among ranks.

Differs from DeepSpeed's own just-in-time build in what hurts on a cluster: no CANN is needed; all
sources go through one translation unit (torch's headers dominate the compile time); a cached build is
named after the contents of everything it depends on, so that unlike machines can share a home directory and
like environments share a build; ranks wait on a lock that the kernel releases when its holder is killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from npu_plugins.errors import NpuPluginsError

FIRST_LINE_OF_COMPILER_ERROR = "error:"


class HostBuildError(NpuPluginsError):
    """A host op could not be compiled; the message says why and what to install."""


@dataclass(frozen=True)
class HostExtension:
    """One C++ extension for the host.

    sources and include_dirs are absolute paths; flags go to the compiler and libraries to the linker.
    apart: sources that do not compile together with the others, for file-local names that collide.
    """

    name: str
    sources: tuple[Path, ...]
    include_dirs: tuple[Path, ...]
    flags: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    apart: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        missing = [
            str(path) for path in (*self.sources, *self.apart, *self.include_dirs) if not path.exists()
        ]
        if missing or not self.sources:
            raise HostBuildError(
                f"The sources of {self.name} are not installed ({missing or 'none named'}): "
                "reinstall deepspeed, whose wheel or sdist carries csrc/."
            )

    def unit(self) -> str:
        """The text of the translation unit of all that compiles together."""
        return "".join(f'#include "{source}"\n' for source in self.sources)

    def units_in(self, directory: Path) -> list[Path]:
        """The files to compile; the unit is written into `directory`."""
        unit = directory / "unit.cpp"
        if not unit.exists() or unit.read_text() != self.unit():
            unit.write_text(self.unit())
        return [unit, *self.apart]

    def key(self, compiler: str) -> str:
        """A digest of all that makes a compiled copy usable: sources, flags, torch, compiler, processor."""
        import torch

        versions = (torch.__version__, sys.version, compiler, processor())
        digest = hashlib.sha256("\0".join((*self.flags, *self.libraries, *versions)).encode())
        headers = (path for folder in self.include_dirs for path in sorted(folder.glob("*.h")))
        for path in (*self.sources, *self.apart, *headers):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]


def processor() -> str:
    """Model and feature flags of the processor: -march=native binds a build to them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return os.uname().machine
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def compiler_version() -> str:
    """The C++ compiler's first version line; raises HostBuildError where none runs."""
    compiler = os.environ.get("CXX", "c++")
    try:
        run = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostBuildError(
            f"No C++ compiler: {compiler!r} does not run ({error}); install g++ or set CXX."
        ) from error
    return run.stdout.splitlines()[0]


@contextmanager
def ninja_on_path() -> Iterator[None]:
    """Make the ninja of this Python's environment visible, which a venv used without `activate` hides."""
    if shutil.which("ninja"):
        yield
        return
    candidate = Path(sys.executable).parent
    if not (candidate / "ninja").exists():
        raise HostBuildError(f"No ninja on PATH nor in {candidate}; run `pip install ninja`.")
    saved = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{candidate}{os.pathsep}{saved}"
    try:
        yield
    finally:
        os.environ["PATH"] = saved


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold the build lock of a directory; it is freed by the kernel even if the holder is killed."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = (directory / "npu_plugins.lock").open("w")
    except OSError as error:
        raise HostBuildError(
            f"The build cache {directory} cannot be written ({error.strerror}); set "
            "TORCH_EXTENSIONS_DIR to a writable directory."
        ) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build(extension: HostExtension, verbose: bool = False) -> ModuleType:
    """Compile an extension, or take it from the cache, and import it; raises HostBuildError."""
    from torch.utils import cpp_extension

    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    directory = Path(root) / "npu_plugins" / f"{extension.name}-{extension.key(compiler_version())}"
    finished = directory / "finished"  # holds the name of the library, once it is whole
    if not finished.exists():
        with exclusive(directory):
            if not finished.exists():
                # Written in one step: a reader sees either nothing or the whole name.
                module = compile_in(directory, extension, verbose)
                (directory / "finishing").write_text(Path(str(module.__file__)).name)
                (directory / "finishing").rename(finished)
                return module
    return import_library(directory / finished.read_text())


def compile_in(directory: Path, extension: HostExtension, verbose: bool = False) -> ModuleType:
    """Compile an extension in a directory that no other process uses, and import it."""
    from torch.utils import cpp_extension

    # torch's own lock file outlives a killed build and would make every later one wait for ever.
    (directory / "lock").unlink(missing_ok=True)
    print(
        f"npu-plugins: compiling {extension.name} for the host, once (about a minute) ...",
        file=sys.stderr,
        flush=True,
    )
    try:
        with ninja_on_path():
            return cpp_extension.load(
                name=extension.name,
                sources=[str(unit) for unit in extension.units_in(directory)],
                extra_include_paths=[str(path) for path in extension.include_dirs],
                extra_cflags=list(extension.flags),
                extra_ldflags=list(extension.libraries),
                build_directory=str(directory),
                verbose=verbose,
            )
    except (RuntimeError, OSError, ImportError, subprocess.SubprocessError) as error:
        if isinstance(error, HostBuildError):
            raise
        reason = summary(str(error).splitlines())
        raise HostBuildError(f"Compiling {extension.name} in {directory} failed: {reason}") from error


def import_library(library: Path) -> ModuleType:
    """Import a compiled extension by its file."""
    spec = importlib.util.spec_from_file_location(library.stem, library)
    if spec is None or spec.loader is None:
        raise HostBuildError(f"{library} is no extension module; delete {library.parent} to compile it anew.")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        raise HostBuildError(
            f"{library} cannot be loaded ({error}); delete {library.parent} to compile it anew."
        ) from error
    return module


def summary(lines: Sequence[str]) -> str:
    """The line of a build log that says what is wrong."""
    for line in lines:
        if FIRST_LINE_OF_COMPILER_ERROR in line:
            return line.strip()
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
