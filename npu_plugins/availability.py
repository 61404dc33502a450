"""Whether an NPU can be used in this process, and the sentence that says why not."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import sys

from npu_plugins.errors import NpuPluginsError, NpuUnavailableError, show_as_one_sentence
from npu_plugins.launchers import is_launcher, is_rank

_MEND = (
    "source CANN's set_env.sh on a machine with an NPU, or set NPU_SIM=<number> to simulate that many NPUs"
)
_ON_CPU = "or set DS_ACCELERATOR=cpu to train on the CPU on purpose"


def installed(package: str) -> bool:
    """True when the package can be found; it is not imported."""
    return package in sys.modules or importlib.util.find_spec(package) is not None


def why_no_cann() -> str | None:
    """Return what the dynamic loader says when CANN's libraries cannot be loaded, or None when they can."""
    for library in ("libascendcl.so", "libhccl.so"):
        try:
            ctypes.CDLL(library)
        except OSError as error:
            return str(error)
    return None


def refuse_without_cann() -> None:
    """Raise NpuUnavailableError when torch_npu would fail for want of CANN."""
    reason = why_no_cann()
    if reason is not None:
        show_as_one_sentence()
        raise NpuUnavailableError(f"torch_npu needs CANN, which cannot be loaded ({reason}): {_MEND}.")


def check_pair() -> None:
    """Raise NpuUnavailableError when torch and torch_npu are not of the same release, as binaries must be."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "torch_npu")}
    releases = {name: version.split(".")[:2] for name, version in versions.items()}
    if releases["torch"] != releases["torch_npu"]:
        show_as_one_sentence()
        raise NpuUnavailableError(
            f"torch {versions['torch']} and torch_npu {versions['torch_npu']} do not belong together: install"
            f" torch_npu {'.'.join(releases['torch'])}.* or torch {'.'.join(releases['torch_npu'])}.*."
        )


def npu_for_deepspeed() -> bool:
    """True when DeepSpeed shall use the NPU; False when it shall choose for itself.

    Raises NpuPluginsError when an NPU was asked for (DS_ACCELERATOR=npu), or when a launched job would
    silently train on the CPU although torch_npu is installed.
    """
    chosen = os.environ.get("DS_ACCELERATOR")
    if chosen not in (None, "npu"):
        return False
    if chosen is None and not installed("torch_npu"):
        return False
    reason = _why_no_npu()
    if reason is None:
        return True
    show_as_one_sentence()
    if chosen == "npu":
        raise NpuPluginsError(f"DS_ACCELERATOR=npu, but {reason}.")
    if _other_accelerator():
        return False
    if is_launcher() or is_rank():
        raise NpuPluginsError(f"This job would train on the CPU: {reason}, {_ON_CPU}.")
    print(f"npu-plugins: warning: DeepSpeed uses the CPU: {reason}, {_ON_CPU}.", file=sys.stderr)
    return False


def _why_no_npu() -> str | None:
    if not installed("torch_npu"):
        return (
            "torch_npu is not installed: install the torch and torch_npu pair of your CANN"
            " (requirements/tested.txt names a tested one)"
        )
    try:
        importlib.import_module("torch_npu")
    except ImportError as error:
        return str(error).rstrip(".")
    torch = importlib.import_module("torch")
    if not torch.npu.is_available():
        return f"CANN is loaded and reports {torch.npu.device_count()} NPUs (see `npu-smi info`): {_MEND}"
    return None


def _other_accelerator() -> bool:
    """True when DeepSpeed would find a device of another maker; an older torch lacks some of the names."""
    torch = importlib.import_module("torch")
    others = (getattr(torch, "cuda", None), getattr(torch, "xpu", None), getattr(torch.backends, "mps", None))
    return any(other is not None and other.is_available() for other in others)
