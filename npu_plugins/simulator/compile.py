"""Runs the C++ compiler: objects in parallel and only where something changed, then the links."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from npu_plugins.errors import SimulatorError
from npu_plugins.simulator.sources import Library, with_headers
from npu_plugins.simulator.toolchain import Toolchain, native_flag

# -ffp-contract=off: the same sums on every processor, with or without fused multiply-add.
_COMMON = ("-std=c++20", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-pthread", "-Wall", "-DNDEBUG")
_HOST = (*_COMMON, "-O3")
_TORCH = (*_COMMON, "-O2", "-D_GLIBCXX_USE_CXX11_ABI=1")  # every torch since 2.7
_TORCH_LIBRARIES = ("-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10")


@dataclass(frozen=True)
class Compiler:
    """Compiles the simulator's sources with one toolchain.

    `objects`: where finished object files are kept; `work`: scratch space of this build.
    """

    toolchain: Toolchain
    objects: Path
    work: Path
    csrc: Path

    @staticmethod
    def flags_text() -> str:
        """All fixed flags, as part of a cache key."""
        return " ".join((*_HOST, *_TORCH, native_flag(), *_TORCH_LIBRARIES))

    def build(self, libraries: Sequence[Library], target: Path) -> None:
        """Compile what changed and link every library into the new directory `target`."""
        versions = self.toolchain.versions()
        jobs = {
            (lib.uses_torch, src): self._object_path(src, lib.uses_torch, versions)
            for lib in libraries
            for src in lib.sources
        }
        self._compile_all([(src, torch, path) for (torch, src), path in jobs.items() if not path.exists()])
        target.mkdir()
        for library in libraries:
            self._link(library, [jobs[library.uses_torch, source] for source in library.sources], target)

    def _object_path(self, source: Path, uses_torch: bool, versions: str) -> Path:
        digest = hashlib.sha256(
            "\0".join((versions, native_flag(), *(_TORCH if uses_torch else _HOST))).encode()
        )
        for path in with_headers(source, self.csrc):
            digest.update(str(path.relative_to(self.csrc.resolve())).encode() + b"\0" + path.read_bytes())
        return self.objects / f"{source.stem}-{digest.hexdigest()[:24]}.o"

    def _flags(self, uses_torch: bool) -> list[str]:
        flags = [*(_TORCH if uses_torch else _HOST), native_flag(), f"-I{self.csrc}"]
        includes = self.toolchain.cann_includes()
        if uses_torch:
            includes = (*includes, *self.toolchain.torch_includes())
        for path in includes:
            flags += ["-isystem", str(path)]
        return flags

    def _compile_all(self, jobs: Sequence[tuple[Path, bool, Path]]) -> None:
        if not jobs:  # what is compiled already has only to be linked
            return
        from tqdm import tqdm  # only a build needs it; a warm start must not pay for its import

        class Bar(tqdm):
            monitor_interval = 0  # no thread stays behind, with which a process could not be forked safely

        started = time.monotonic()
        bar = Bar(
            total=len(jobs), desc="npu-plugins: building the NPU simulator", unit="file", file=sys.stderr
        )
        pool = ThreadPoolExecutor(_parallel_jobs())
        try:
            running = [pool.submit(self._compile, *job) for job in sorted(jobs, key=lambda job: not job[1])]
            for future in as_completed(running):
                bar.set_postfix_str(future.result())
                bar.update()
        finally:
            pool.shutdown(cancel_futures=True)
            bar.close()
        print(f"npu-plugins: compiled in {time.monotonic() - started:.0f} s.", file=sys.stderr)

    def _compile(self, source: Path, uses_torch: bool, target: Path) -> str:
        unfinished = self.work / target.name
        self._run([*self._flags(uses_torch), "-c", str(source), "-o", str(unfinished)], source.name)
        os.replace(unfinished, target)
        return source.name

    def _link(self, library: Library, objects: Sequence[Path], target: Path) -> None:
        arguments = ["-shared", "-pthread", *map(str, objects), "-o", str(target / library.name)]
        arguments += [
            f"-Wl,-soname,{library.alias or library.name}",
            "-Wl,-rpath,$ORIGIN",
            f"-L{target}",
            "-Wl,--no-as-needed",
        ]
        arguments += [f"-l{name}" for name in library.needs]
        if library.uses_torch:
            for folder in (self.toolchain.torch / "lib", self.toolchain.torch_npu / "lib"):
                arguments += [f"-L{folder}", f"-Wl,-rpath,{folder}"]
            arguments += [*_TORCH_LIBRARIES, "-ltorch_npu"]
        else:
            arguments += ["-Wl,--no-undefined", "-lrt", "-ldl"]
        self._run(arguments, library.name)

    def _run(self, arguments: Sequence[str], what: str) -> None:
        command = [*self.toolchain.compiler, *arguments]
        environ = {**os.environ, "TMPDIR": str(self.work), "LC_ALL": "C"}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
        )
        if done.returncode == 0:
            return
        if "No space left on device" in done.stdout:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.work))
        log = self.objects.parent / "build.log"
        log.write_text(f"{' '.join(command)}\n\n{done.stdout}", encoding="utf-8")
        first = re.search(r"^.*(?:error|undefined reference|fatal|cannot find).*$", done.stdout, re.MULTILINE)
        reason = first[0] if first else f"exit status {done.returncode}"
        raise SimulatorError(
            f"{self.toolchain.compiler_version()} could not build {what} of the NPU simulator"
            f" ({reason.strip()}): see the command and its whole output in {log} (g++ 11 or newer is needed)."
        )


def _parallel_jobs() -> int:
    """Compilers to run at once: MAX_JOBS as for PyTorch's own extensions, else one a core, at most 8."""
    asked = os.environ.get("MAX_JOBS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else min(8, len(os.sched_getaffinity(0)))
