"""Refuse to start where the HF Trainer would silently train on the CPU, and name the device used."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from accelerate.utils import is_npu_available

from hf_integration.errors import TrainingInputError
from npu_plugins.autoload import platform


@dataclass(frozen=True)
class DeviceDescription:
    """What the run computes and communicates with, in words for the final report.

    Attributes:
        device: as torch names it, such as ``npu:0``.
        platform: what stands behind it, fit for a label: ``npu``, ``cpu`` or what npu_plugins calls it.
        name: the chip's name as its driver reports it.
        backend: of the default process group, such as ``hccl``; ``none`` for a single process.
        accelerator: full class name of DeepSpeed's accelerator; ``none`` without DeepSpeed.
        world_size: number of processes.
    """

    device: str
    platform: str
    name: str
    backend: str
    accelerator: str
    world_size: int


def require_device(*, use_cpu: bool, deepspeed: bool) -> None:
    """Check, before any process group exists, that the wanted device is there.

    Raises:
        TrainingInputError: no accelerator is visible, there are fewer than the local ranks need, or the
            combination of flags would make accelerate drop DeepSpeed without a word.
    """
    forced_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "y", "on", "t")
    if use_cpu or forced_cpu:
        if deepspeed:
            flag = "--use_cpu" if use_cpu else "ACCELERATE_USE_CPU"
            raise TrainingInputError(
                f"{flag} together with --deepspeed would train without DeepSpeed, because accelerate drops "
                "it on the CPU; remove one of the two"
            )
        return
    kind = visible_device_type()
    if kind is None:
        raise TrainingInputError(
            "no NPU is visible to torch; source CANN's set_env.sh, or set NPU_SIM=<number> to simulate NPUs, "
            "or train on the CPU with --use_cpu and without --deepspeed"
        )
    needed, count = local_world_size(), getattr(torch, kind).device_count()
    if needed > count:
        raise TrainingInputError(
            f"{needed} ranks were started on this machine but only {count} device(s) are visible; start at "
            f"most {count} (deepspeed --num_gpus {count}) or make more visible"
        )
    if deepspeed:
        require_deepspeed_on(kind)


def visible_device_type() -> str | None:
    """Return the kind of device accelerate will choose, ``npu`` before ``cuda``; None for the CPU."""
    if is_npu_available():
        return "npu"
    return "cuda" if torch.cuda.is_available() else None


def require_deepspeed_on(kind: str) -> None:
    """Raise TrainingInputError unless DeepSpeed's accelerator is of ``kind``, which the Trainer uses."""
    from deepspeed.accelerator import get_accelerator

    found = get_accelerator().device_name()
    if kind != found:
        raise TrainingInputError(
            f"the Trainer uses {kind!r} but DeepSpeed chose {found!r}; unset DS_ACCELERATOR "
            f"(now {os.environ.get('DS_ACCELERATOR')}) and check that npu_plugins is installed"
        )


def local_world_size() -> int:
    """Return the number of ranks that the launcher started on this machine (1 without a launcher)."""
    # torchrun sets LOCAL_WORLD_SIZE, DeepSpeed's launcher LOCAL_SIZE.
    return int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)


def platform_label(device_type: str) -> str:
    """Return the label under which speeds on ``device_type`` are reported, so that unlike ones do not mix."""
    return platform() if device_type == "npu" else device_type


def describe_device(device: torch.device, *, deepspeed: bool) -> DeviceDescription:
    """Return what this rank runs on, asked from torch and DeepSpeed and not from the flags."""
    name = "host" if device.type == "cpu" else getattr(torch, device.type).get_device_name(device)
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    accelerator = "none"
    if deepspeed:
        from deepspeed.accelerator import get_accelerator

        kind = type(get_accelerator())
        accelerator = f"{kind.__module__}.{kind.__qualname__}"
    return DeviceDescription(
        device=str(device),
        platform=platform_label(device.type),
        name=name,
        backend=torch.distributed.get_backend() if grouped else "none",
        accelerator=accelerator,
        world_size=torch.distributed.get_world_size() if grouped else 1,
    )


def ranks_in_words(ranks: int, platform: str) -> str:
    """Return how many ranks of which kind a run has, such as ``4 simulated NPUs`` or ``1 CPU rank``."""
    kind = platform.replace("_", " ").replace("npu", "NPU").replace("cpu", "CPU rank")
    return f"{ranks} {kind}{'s' * (ranks != 1)}"
