"""Builds the simulator's libraries into the user's cache, once for each set of sources, versions and CPU.

Layout of the cache directory:
    lock            held while building; ranks that start together wait for the first
    stamps/<stamp>  file times and sizes -> key, so that a warm start reads no source
    libs/<key>/     a complete set of libraries; it appears whole, by a rename
    objects/<key>.o one object file for each source, kept so that a change recompiles only what it touches
    tmp/            work in progress; whatever a killed build left there is deleted by the next
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from npu_plugins.errors import SimulatorError
from npu_plugins.simulator.compile import Compiler
from npu_plugins.simulator.settings import cache_root
from npu_plugins.simulator.sources import CSRC, all_files, libraries
from npu_plugins.simulator.toolchain import Toolchain, find_toolchain


def ensure_built(root: Path | None = None, csrc: Path = CSRC) -> Path:
    """Return the directory of libraries for this machine, building them first if they are not there yet.

    `root` is the cache directory (cache_root() by default). Raises SimulatorError with one sentence when
    there is no compiler, the sources do not compile, or the cache cannot be written.
    """
    root = root or cache_root()
    toolchain = find_toolchain()
    stamp = _digest(toolchain.stamp(), *_stats(csrc))
    try:
        built = _by_stamp(root, stamp)
        if built is None:
            built = root / "libs" / _key(toolchain, csrc)
            if not built.is_dir():
                with _locked(root):
                    if not built.is_dir():
                        _build(root, built, toolchain, csrc)
            _remember(root, stamp, built.name)
    except OSError as error:
        raise _cache_error(root, error) from error
    return built


def find_built(root: Path | None = None, csrc: Path = CSRC) -> Path | None:
    """Return the directory of libraries for this machine if they are built and current, else None."""
    built = (root or cache_root()) / "libs" / _key(find_toolchain(), csrc)
    return built if built.is_dir() else None


def clean(root: Path | None = None) -> int:
    """Delete everything the simulator built; returns the number of bytes freed."""
    root = root or cache_root()
    if not root.is_dir():
        return 0
    try:
        with _locked(root):
            size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
            for name in ("stamps", "libs", "objects", "tmp"):
                if (root / name).exists():
                    shutil.rmtree(root / name)
    except OSError as error:
        raise _cache_error(root, error) from error
    return size


def _build(root: Path, built: Path, toolchain: Toolchain, csrc: Path) -> None:
    """Compile and link everything into `built`, which appears only when it is complete."""
    shutil.rmtree(root / "tmp", ignore_errors=True)  # we hold the lock: its owner is gone
    for name in ("tmp", "libs", "objects"):
        (root / name).mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=root / "tmp"))
    compiler = Compiler(toolchain, objects=root / "objects", work=work, csrc=csrc)
    compiler.build(libraries(csrc), work / "libs")
    os.replace(work / "libs", built)
    shutil.rmtree(work)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the cache's lock; say once that another process has it, if so, and wait."""
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "lock", "a", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                "npu-plugins: another process is building the NPU simulator; waiting for it.", file=sys.stderr
            )
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _by_stamp(root: Path, stamp: str) -> Path | None:
    """Return the libraries last seen with this stamp, if they are still there."""
    try:
        built = root / "libs" / (root / "stamps" / stamp).read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    return built if built.is_dir() else None


def _remember(root: Path, stamp: str, key: str) -> None:
    """Note the key of this stamp, if possible: a read-only cache works without, a little slower."""
    with contextlib.suppress(OSError):
        (root / "stamps").mkdir(exist_ok=True)
        handle, path = tempfile.mkstemp(dir=root / "stamps")
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(key)
        os.replace(path, root / "stamps" / stamp)


def _key(toolchain: Toolchain, csrc: Path) -> str:
    return _digest(toolchain.identity(), Compiler.flags_text(), *_contents(csrc))


def _stats(csrc: Path) -> Iterator[str]:
    for path in all_files(csrc):
        status = path.stat()
        yield f"{path}:{status.st_mtime_ns}:{status.st_size}"


def _contents(csrc: Path) -> Iterator[str]:
    for path in all_files(csrc):
        yield f"{path.relative_to(csrc)}:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _cache_error(root: Path, error: OSError) -> SimulatorError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        mend = "free some space there (50 MiB are enough)"
    else:
        mend = "make it writable"
    return SimulatorError(
        f"The simulator's cache {root} cannot be used ({error.strerror or error}): {mend}, or set"
        " NPU_SIM_CACHE to another directory."
    )
