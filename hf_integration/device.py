"""Refuse to start where the HF Trainer would silently train on the CPU, and name the device used."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from hf_integration.errors import TrainingInputError


@dataclass(frozen=True)
class DeviceDescription:
    """What the run computes and communicates with, in words for the final report.

    Attributes:
        device: as torch names it, such as ``npu:0``.
        name: the chip's name as its driver reports it.
        backend: of the default process group, such as ``hccl``; ``none`` for a single process.
        accelerator: full class name of DeepSpeed's accelerator; ``none`` without DeepSpeed.
        world_size: number of processes.
    """

    device: str
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
                f"{flag} together with --deepspeed would train without DeepSpeed, because accelerate drops it on "
                "the CPU; remove one of the two"
            )
        return
    count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if count == 0:
        raise TrainingInputError(
            "no NPU is visible to torch; source CANN's set_env.sh, or set NPU_SIM=<number> to simulate NPUs, "
            "or train on the CPU with --use_cpu and without --deepspeed"
        )
    needed = local_world_size()
    if needed > count:
        raise TrainingInputError(
            f"{needed} ranks were started on this machine but only {count} device(s) are visible; start at most "
            f"{count} (deepspeed --num_gpus {count}) or make more visible"
        )
    if deepspeed:
        require_same_device_type()


def require_same_device_type() -> None:
    """Raise TrainingInputError if DeepSpeed and torch would use different kinds of device."""
    from deepspeed.accelerator import get_accelerator

    wanted = torch.accelerator.current_accelerator().type
    found = get_accelerator().device_name()
    if wanted != found:
        raise TrainingInputError(
            f"torch uses {wanted!r} but DeepSpeed chose {found!r}; unset DS_ACCELERATOR "
            f"(now {os.environ.get('DS_ACCELERATOR')}) and check that npu_plugins is installed"
        )


def local_world_size() -> int:
    """Return the number of ranks that the launcher started on this machine (1 without a launcher)."""
    # torchrun sets LOCAL_WORLD_SIZE, DeepSpeed's launcher LOCAL_SIZE.
    return int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)


def describe_device(device: torch.device, *, deepspeed: bool) -> DeviceDescription:
    """Return what this rank runs on, asked from torch and DeepSpeed and not from the flags."""
    module = getattr(torch, device.type, None)
    name = module.get_device_name(device) if hasattr(module, "get_device_name") else device.type
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    accelerator = "none"
    if deepspeed:
        from deepspeed.accelerator import get_accelerator

        kind = type(get_accelerator())
        accelerator = f"{kind.__module__}.{kind.__qualname__}"
    return DeviceDescription(
        device=str(device),
        name=name,
        backend=torch.distributed.get_backend() if grouped else "none",
        accelerator=accelerator,
        world_size=torch.distributed.get_world_size() if grouped else 1,
    )
