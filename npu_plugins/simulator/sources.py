"""Which libraries the simulator consists of, and which files each object file depends on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CSRC = Path(__file__).parent / "csrc"
COMPUTE_LIBRARY = "npu_sim_compute.so"
_QUOTED_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Library:
    """One shared library: its file name, its sources, and what it is linked with."""

    name: str
    sources: tuple[Path, ...]
    uses_torch: bool = False
    needs: tuple[str, ...] = ()  # simulator libraries to link with, without "lib" and ".so"
    alias: str = ""  # the name under which dlopen finds it once it is loaded, where that is not `name`


def libraries(csrc: Path = CSRC) -> tuple[Library, ...]:
    """Return every library of the simulator, each after the ones it is linked with."""
    cann = Library("libascendcl.so", _cpp(csrc / "runtime"))
    hccl = Library("libhccl.so", _cpp(csrc / "hccl"), needs=("ascendcl",))
    # torch_npu looks functions up in these by name: that search goes on in the libraries they need.
    named_only = tuple(
        Library(f"{path.stem}.so", (path,), needs=("ascendcl", "hccl")) for path in _cpp(csrc / "stubs")
    )
    # torch_npu's own kernels open CANN's operator library by name, and find this one: it is loaded already.
    compute = Library(
        COMPUTE_LIBRARY,
        _cpp(csrc / "compute"),
        uses_torch=True,
        needs=("ascendcl", "hccl"),
        alias="libopapi.so",
    )
    return tuple(library for library in (cann, hccl, *named_only, compute) if library.sources)


def all_files(csrc: Path = CSRC) -> Iterator[Path]:
    """Yield every file a library is made from, in a fixed order."""
    for folder in ("compute", "hccl", "runtime", "stubs"):
        yield from sorted(path for path in (csrc / folder).rglob("*") if path.suffix in (".cpp", ".h"))


def with_headers(source: Path, csrc: Path = CSRC) -> tuple[Path, ...]:
    """Return `source` and, recursively, the simulator's own headers it includes, in a fixed order."""
    found: dict[Path, None] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        for name in _QUOTED_INCLUDE.findall(path.read_bytes()):
            for folder in (path.parent, csrc):
                candidate = (folder / name.decode()).resolve()
                if candidate.is_file():
                    waiting.append(candidate)
                    break
    return tuple(sorted(found))


def _cpp(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path.resolve() for path in folder.rglob("*.cpp")))
