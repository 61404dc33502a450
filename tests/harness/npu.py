"""Whether tests may use NPUs here, and with which environment."""

from __future__ import annotations

import importlib.util
import os

from tests.harness.spec import MAX_WORLD_SIZE


def why_no_npu() -> str | None:
    """The reason why no NPU, real or simulated, can be had; None if one can."""
    if importlib.util.find_spec("torch_npu") is None:
        return "torch_npu is not installed (it has no wheel for this platform or Python)"
    return None


def rank_environment() -> dict[str, str]:
    """The environment of the ranks: this one, one thread each, and simulated NPUs unless CANN is there.

    NPU_SIM_NODE gives the session a simulated machine of its own, so that two test runs do not share memory.
    """
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    # pyarrow's allocator would start a thread when imported, and a process with threads cannot be forked.
    env["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    if why_no_npu() is None and "ASCEND_HOME_PATH" not in env:
        env["NPU_SIM"] = str(MAX_WORLD_SIZE)
        env["NPU_SIM_NODE"] = f"pytest-{os.getpid()}"
    return env
