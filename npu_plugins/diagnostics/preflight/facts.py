"""What a rank says of itself: versions, environment, device, random numbers."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import pickle
import platform
import random
import re
import sys
from collections.abc import Mapping
from typing import Any

import torch

from npu_plugins.comm.timeouts import VARIABLES as TIMEOUTS
from npu_plugins.diagnostics.preflight.compare import ABSENT, EVERYWHERE, Fact
from npu_plugins.diagnostics.preflight.place import Place

PACKAGES = ("torch", "torch_npu", "deepspeed", "transformers", "accelerate", "peft", "numpy", "npu-plugins")
PLAIN = ("numpy", "peft")
"""Packages whose releases need not be the same for ranks to work together."""

COMPARED = re.compile(
    r"(HCCL|TORCH_HCCL|TORCH_NCCL|NCCL|GLOO|LCCL)_\w+"
    r"|NPU_SIM(_HBM|_SLOW_LINK)?|NPU_PLUGINS_(RING|HANG_WATCH)|DS_ACCELERATOR"
    r"|TASK_QUEUE_ENABLE|CPU_AFFINITY_CONF|PYTORCH_NPU_ALLOC_CONF|PYTORCH_NO_NPU_MEMORY_CACHING|COMBINED_ENABLE"
    r"|INF_NAN_MODE_ENABLE|MULTI_STREAM_MEMORY_REUSE|ASCEND_LAUNCH_BLOCKING|ACLNN_CACHE_LIMIT"
    r"|WORLD_SIZE|MASTER_PORT|PYTHONHASHSEED|OMP_NUM_THREADS"
)
"""Variables that change what ranks compute, how they communicate or how long they wait."""
OF_A_HOST = re.compile(
    r"HCCL_(IF_IP|SOCKET_IFNAME|WHITELIST_FILE|IF_BASE_PORT|HOST_SOCKET_PORT_RANGE|NPU_SOCKET_PORT_RANGE)"
    r"|HCCL_(DEBUG_CONFIG|LOGIC_SUPERPOD_ID|DIAGNOSE_ENABLE)|(GLOO|NCCL)_SOCKET_IFNAME|NCCL_(DEBUG\w*|TOPO_FILE)"
)
"""Those of them that may well differ from host to host."""
ONLY_SPEED = ("OMP_NUM_THREADS", "TASK_QUEUE_ENABLE", "CPU_AFFINITY_CONF", "PYTORCH_NPU_ALLOC_CONF")


def version_facts() -> list[Fact]:
    """Return Python's version, and those of the packages that a job uses."""
    mend = "install the same release on all hosts (requirements/tested.txt names tested ones)"
    python = ".".join(platform.python_version_tuple()[:2])
    found = [Fact("versions", "python", python, mend=mend)]
    for name in PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        found.append(
            Fact("versions", name, version, level="warning" if name in PLAIN else "error", mend=mend)
        )
    return found


def environment_facts(environ: Mapping[str, str] = os.environ) -> list[Fact]:
    """Return the variables that must be the same on all ranks."""
    found = []
    for name in sorted({*filter(_is_compared, environ), *TIMEOUTS}):
        mend = f"export {name} alike on all hosts, with deepspeed in a file .deepspeed_env"
        level = "warning" if name in ONLY_SPEED else "error"
        found.append(Fact("environment", name, environ.get(name) or ABSENT, level=level, mend=mend))
    return found


def device_facts(device: torch.device, place: Place, environ: Mapping[str, str] = os.environ) -> list[Fact]:
    """Return the kind of device, alike everywhere, and which one it is, a different one for each rank.

    Args:
        device: of this rank, with its index unless it is the CPU.
        place: of this rank.
        environ: with what restricts the devices that this rank sees.
    """
    found = [Fact("device", "kind", device.type, mend="give all ranks the same kind, or --device on all")]
    if device.type == "cpu":
        return found
    module: Any = getattr(torch, device.type)
    name = module.get_device_name(device)
    found.append(Fact("device", "name", name, level="warning", mend="use cards of one kind in a job"))
    visible = [each for each in environ.get("ASCEND_RT_VISIBLE_DEVICES", "").split(",") if each.strip()]
    index = device.index or 0
    physical = visible[index].strip() if device.type == "npu" and index < len(visible) else str(index)
    mend = (
        "let each rank have one of its own: start no more ranks on a host than it has devices, and call "
        f"torch.{device.type}.set_device(int(os.environ['LOCAL_RANK']))"
    )
    apart = Fact(
        "device", "used", f"{device.type} {physical} of {place.machine}", apart=EVERYWHERE, mend=mend
    )
    return [*found, apart]


def random_facts(device: torch.device, alike: tuple[str, ...] = EVERYWHERE) -> list[Fact]:
    """Return digests of the states from which random numbers come next: Python's, numpy's, torch's.

    Args:
        device: whose default generator is among them.
        alike: axes along which they must be the same. After `set_seed` that is all axes; a script that seeds
            replicas apart gives ``("tp", "pp")``.
    """
    states = {"random": repr(random.getstate()).encode(), "torch": _bytes(torch.get_rng_state())}
    if "numpy" in sys.modules:
        states["numpy"] = pickle.dumps(sys.modules["numpy"].random.get_state(legacy=False))
    if device.type != "cpu":
        states[f"torch.{device.type}"] = _bytes(getattr(torch, device.type).get_rng_state(device))
    mend = "call set_seed with the same seed on all ranks, and draw nothing on some of them only"
    digests = {name: hashlib.sha256(state).hexdigest()[:12] for name, state in states.items()}
    return [
        Fact("seeds", f"the state of {name}'s generator", digest, alike=alike, mend=mend)
        for name, digest in digests.items()
    ]


def _is_compared(name: str) -> bool:
    return bool(COMPARED.fullmatch(name)) and not OF_A_HOST.fullmatch(name)


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.cpu().numpy().tobytes())
