"""A simulator of a few lines with the real one's layout, and compilers that misbehave."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

STUBS = ("libgraph",)


def write_sources(csrc: Path) -> Path:
    """Write the tiny sources: two objects of libascendcl share a header, libhccl includes none."""
    for folder in ("runtime", "hccl", "stubs"):
        (csrc / folder).mkdir(parents=True)
    export = '#pragma once\n#define API extern "C" __attribute__((visibility("default")))\n'
    (csrc / "runtime" / "export.h").write_text(export)
    (csrc / "runtime" / "device.cpp").write_text(
        '#include "runtime/export.h"\nAPI int tiny_devices() { return 2; }\n'
    )
    (csrc / "runtime" / "memory.cpp").write_text(
        '#include "export.h"\nAPI long tiny_bytes() { return 64; }\n'
    )
    hccl = 'extern "C" int tiny_devices();\nextern "C" __attribute__((visibility("default")))\n'
    (csrc / "hccl" / "ranks.cpp").write_text(hccl + "int tiny_ranks() { return 4 * tiny_devices(); }\n")
    for name in STUBS:
        (csrc / "stubs" / f"{name}.cpp").write_text(
            f'extern const char {name}[];\nconst char {name}[] = "";\n'
        )
    return csrc


def write_compiler(folder: Path, before: str = "") -> Path:
    """Write a compiler that notes each source in `compiled`, runs the shell lines `before`, then g++."""
    real = shutil.which("g++")
    assert real, "these tests need g++"
    compiler = folder / "recording-g++"
    note = f'for word in "$@"; do case $word in *.cpp) echo "${{word##*/}}" >> {folder}/compiled;; esac; done'
    compiler.write_text(f'#!/bin/sh\n{note}\n{before}\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    return compiler


def compiled(folder: Path) -> list[str]:
    """Names of the sources compiled so far, sorted; asking forgets them."""
    record = folder / "compiled"
    if not record.exists():
        return []
    names = sorted(record.read_text().split())
    record.unlink()
    return names


def start_build(cache: Path, csrc: Path, compiler: Path) -> subprocess.Popen[str]:
    """Start a process that builds `csrc` into `cache` and prints the directory of libraries."""
    code = (
        "import sys; from pathlib import Path; from npu_plugins.simulator.build import ensure_built;"
        "print(ensure_built(Path(sys.argv[1]), Path(sys.argv[2])))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(cache), str(csrc)],
        env={**os.environ, "CXX": str(compiler)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
