"""Puts the simulated CANN into this process: its libraries before torch_npu loads, its kernels after."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path

from npu_plugins.errors import SimulatorError
from npu_plugins.launchers import is_launcher
from npu_plugins.simulator.build import ensure_built
from npu_plugins.simulator.settings import SimulatorSettings, format_bytes, settings_from
from npu_plugins.simulator.sources import COMPUTE_LIBRARY

_ANNOUNCED = "NPU_SIM_ANNOUNCED"  # set for child processes, so that a job says it once
_PR_SET_TIMERSLACK = 29  # prctl(2)
_TIMER_SLACK_NS = 1_000_000


@functools.cache
def load_cann() -> Path:
    """Build the simulator if needed and load it in place of CANN; call before torch_npu is imported.

    Returns the directory of the libraries. A second call does nothing.
    """
    settings = settings_from()
    _refuse_beside_real_cann(settings)
    built = ensure_built()
    os.environ["NPU_SIM_HBM_BYTES"] = str(settings.hbm_bytes)  # libascendcl reads this one: no unit to parse
    # libascendcl first: the others are linked with it. RTLD_GLOBAL: torch_npu looks functions up by name.
    for path in sorted(built.glob("lib*.so"), key=lambda path: path.name != "libascendcl.so"):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    _sleep_coarsely()
    _announce(settings)
    return built


@functools.cache
def load_kernels() -> None:
    """Register the host kernels of the simulated NPU with torch; call once torch_npu has been imported."""
    path = load_cann() / COMPUTE_LIBRARY
    if not path.exists():
        return
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    status = library.npu_sim_register() if hasattr(library, "npu_sim_register") else 0
    if status != 0:
        raise SimulatorError(
            f"The kernels of the simulated NPU could not be registered (npu_sim_register returned {status}):"
            " delete the build with `npu-plugins simulator clean` and start again."
        )


def _refuse_beside_real_cann(settings: SimulatorSettings) -> None:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        loaded = [line.split(maxsplit=5)[-1].strip() for line in maps if "/libascendcl.so" in line]
    if loaded:
        raise SimulatorError(
            f"NPU_SIM={settings.npus} is set, but this process has already loaded CANN from {loaded[0]}:"
            " unset NPU_SIM to use the card, or import torch before whatever loaded CANN."
        )


def _sleep_coarsely() -> None:
    """Let the waits of this process, of its threads and children end up to a millisecond late.

    A thread of torch_npu 2.13 (`ReleaseQueue::PopFromReleaseQueue` in NPUQueue.cpp) looks for work after
    every microsecond of sleep, as long as the process lives. Where the CPU does the NPUs' work, too, that
    took up to half of the time of each rank. A wait ends as early as before when it is woken.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(_TIMER_SLACK_NS), 0, 0, 0)


def _announce(settings: SimulatorSettings) -> None:
    """Say on rank 0's stderr, once a job, that no real NPU is at work."""
    rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
    if os.environ.get(_ANNOUNCED) or rank != "0" or is_launcher():
        return
    os.environ[_ANNOUNCED] = "1"
    real = os.environ.get("ASCEND_HOME_PATH", "")
    aside = f"; the CANN in {real} is not used" if real and Path(real, "lib64").is_dir() else ""
    noun = "NPU" if settings.npus == 1 else "NPUs"
    print(
        f"npu-plugins: {settings.npus} simulated {noun} ({format_bytes(settings.hbm_bytes)} each): results"
        f" are real, times are this CPU's{aside}.",
        file=sys.stderr,
        flush=True,
    )
