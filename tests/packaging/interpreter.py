"""Runs small programs in interpreters of their own, with just the NPU settings a test names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_OURS = (
    "NPU_SIM",
    "DS_ACCELERATOR",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "ASCEND_",
    "RANK",
    "LOCAL_",
    "WORLD_SIZE",
)


def clean_environment(**environ: str) -> dict[str, str]:
    """This process's environment, without NPU and launcher settings but the cache, and with `environ`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "NPU_SIM_CACHE" or not name.startswith(_OURS)
    }
    return {**kept, "OMP_NUM_THREADS": "1", **environ}


def run_python(
    *arguments: str,
    cwd: Path | None = None,
    python: str | Path = sys.executable,
    timeout: float = 120,
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    """Run `python arguments` and return how it ended and what it printed; a timeout (seconds) raises."""
    return subprocess.run(
        [str(python), *arguments],
        env=clean_environment(**environ),
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
    )


def said_by_us(stderr: str) -> list[str]:
    """The lines of stderr that are this package's, without those of a build."""
    building = ("npu-plugins: building", "npu-plugins: compiled", "npu-plugins: another process")
    lines = [line for line in stderr.splitlines() if "npu-plugins:" in line]
    return [line for line in lines if not any(word in line for word in building)]
