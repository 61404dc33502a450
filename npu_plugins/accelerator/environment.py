"""The environment variables that choose NPUs and that every node of a job must share."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

VISIBLE_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"

# Names that people set in the belief that they choose NPUs, and who reads each of them.
MISTAKEN_DEVICE_VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "CUDA reads it",
    "NPU_VISIBLE_DEVICES": "nothing reads it",
    "ASCEND_VISIBLE_DEVICES": "the Ascend container runtime reads it when it starts a container",
    "ASCEND_DEVICE_ID": "only old CANN samples read it",
}

# Prefixes of what DeepSpeed's runner copies to the other nodes, on top of its own MLFLOW, PYTHON, MV2, UCX.
# PATH is matched as a prefix too, as in DeepSpeed's own accelerators. Of Hugging Face's variables only these:
# the runner puts values on command lines, where all could read HF_TOKEN.
EXPORTED_PREFIXES = (
    "ASCEND",
    "HCCL_",
    "NPU_",
    "DS_",
    "DEEPSPEED_",
    "TORCH",
    "PYTORCH_",
    "OMP_",
    "MKL_",
    "TASK_QUEUE_ENABLE",
    "CPU_AFFINITY_CONF",
    "COMBINED_ENABLE",
    "ACLNN_CACHE_LIMIT",
    "INF_NAN_MODE",
    "LCCL_",
    "LCAL_",
    "ATB_",
    "TOOLCHAIN_HOME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PATH",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_DATASETS_",
    "HF_ENDPOINT",
    "TOKENIZERS_PARALLELISM",
)


def is_first_local_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """True in the one process of a machine that speaks for all: the launcher, or local rank 0."""
    return environ.get("LOCAL_RANK", "0") in ("", "0")


def parse_devices(value: str) -> list[int]:
    """Device numbers of a list such as `0,2` or `0-3`, in order; raises ValueError on anything else."""
    devices: list[int] = []
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"{part!r} in {value!r} is neither a device number nor a range such as 0-3")
        devices.extend(range(int(first), int(last if dash else first) + 1))
    return devices


def mistaken_device_variables(environ: Mapping[str, str], device_count: int) -> str | None:
    """A warning about a variable that was meant to choose NPUs but does not, or None.

    Silent when `ASCEND_RT_VISIBLE_DEVICES` is set, or when the variable names as many devices as are seen:
    then either the user knows, or it makes no difference.
    """
    if environ.get(VISIBLE_DEVICES):
        return None
    for name, reader in MISTAKEN_DEVICE_VARIABLES.items():
        value = environ.get(name, "").strip()
        if not value:
            continue
        try:
            meant = len(set(parse_devices(value)))
        except ValueError:
            continue
        if meant != device_count:
            return (
                f"{name}={value} does not choose NPUs ({reader}), so all {device_count} are in use; "
                f"set {VISIBLE_DEVICES}={value} to use these."
            )
    return None


def set_visible_devices(environ: MutableMapping[str, str], devices: list[int]) -> None:
    """Restrict a child process, whose environment this is, to the devices with these numbers."""
    environ[VISIBLE_DEVICES] = ",".join(str(device) for device in devices)
