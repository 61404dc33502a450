"""Which device a group's collectives can reach."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from npu_plugins.comm.errors import CommError


def backend_of(group: dist.ProcessGroup | None) -> str:
    """Return a group's backend as it was asked for, such as ``hccl``; None: the default group's.

    Where none was asked for, torch chose by the kinds of device, such as ``npu:hccl``.
    """
    backend = dist.get_backend(group)
    return dist.get_backend_config(group) if backend == dist.Backend.UNDEFINED else backend


def device_types(group: dist.ProcessGroup | None) -> tuple[str, ...]:
    """Return the device types whose tensors a group's collectives take; None: the default group."""
    pairs = dist.get_backend_config(group).split(",")
    return tuple(pair.split(":")[0] for pair in pairs)


def device_for(backend: str, device: torch.device | str | None) -> torch.device:
    """Return the device that a rank uses with `backend`, with its index.

    Args:
        backend: of the groups.
        device: as asked for. None: the CPU if the backend serves it by itself (gloo), else its accelerator.
            An accelerator without an index is taken at the index that this process chose (`set_device`),
            else at its rank within the machine, which launchers put into LOCAL_RANK.

    Raises:
        CommError: no backend of that name is known, or it does not reach the device.
    """
    reach = _reach(backend)
    if device is None:
        device = backend_device_type(backend)
    found = torch.device(device)
    if found.type not in reach:
        raise CommError(
            f"Backend {backend} communicates tensors on {', '.join(reach)}, not on {found}; {_mend(found)}"
        )
    if found.type != "cpu" and found.index is None:
        found = torch.device(found.type, _own_index(found.type))
    return found


def backend_device_type(backend: str) -> str:
    """Return the type of device that ranks of `backend` use: the CPU if it serves that by itself (gloo).

    Raises:
        CommError: no backend of that name is known.
    """
    reach = _reach(backend)
    by_itself = ":" not in backend and "cpu" in reach
    return "cpu" if by_itself else next((kind for kind in reach if kind != "cpu"), "cpu")


def make_current(device: torch.device) -> None:
    """Let tensors that are made without an index, and collectives of objects, use `device`."""
    if device.index is not None and device.type != "cpu":
        getattr(torch, device.type).set_device(device.index)


def check_group_device(group: dist.ProcessGroup | None, device: torch.device, what: str) -> None:
    """Refuse a group whose collectives do not take tensors on `device`.

    Args:
        group: None is the default process group, as in torch.distributed.
        device: where the tensors lie.
        what: names the group in the sentence, such as ``the tp group of layers.0.mlp.up``.

    Raises:
        CommError: the group is on the wrong device.
    """
    reach = device_types(group)
    if device.type not in reach:
        backend = backend_of(group)
        raise CommError(
            f"{what[0].upper()}{what[1:]} uses {backend}, which communicates tensors on {', '.join(reach)}, "
            f"but the tensors are on {device}; {_mend(device)}"
        )


def inherited_timeout(device: torch.device) -> timedelta | None:
    """Return the default group's timeout for `device`, which torch does not hand on to new groups.

    None where the default group has no backend for the device, or one that tells none; torch's default serves
    then.
    """
    if device.type not in device_types(None):
        return None
    # torch 2.13 has no public way to ask a group for its timeout; its own tests read it like this.
    options = getattr(dist.distributed_c10d._get_default_group()._get_backend(device), "options", None)
    return getattr(options, "_timeout", None)


def _own_index(device_type: str) -> int:
    """The index that this process chose; index 0 counts as no choice where LOCAL_RANK says otherwise.

    deepspeed.init_distributed() chooses none, so every rank of a machine would stand on device 0.
    """
    module = getattr(torch, device_type)
    current, local_rank = module.current_device(), int(os.environ.get("LOCAL_RANK", 0))
    # Where each rank sees one device only (ASCEND_RT_VISIBLE_DEVICES), that is device 0 whatever its rank.
    return local_rank if current == 0 and local_rank < module.device_count() else current


def _reach(backend: str) -> tuple[str, ...]:
    if ":" in backend:
        return tuple(pair.split(":")[0] for pair in backend.split(","))
    capability = dist.Backend.backend_capability
    if backend not in capability:
        raise CommError(f"torch.distributed knows no backend {backend!r}; it has {', '.join(capability)}")
    return tuple(capability[backend])


def _mend(device: torch.device) -> str:
    """What to change so that a group reaches `device`."""
    able = [name for name, types in dist.Backend.backend_capability.items() if device.type in types]
    if not able:
        return "use a device that a backend knows"
    return (
        f"move the model, or make the mesh with backend={able[0]!r} (ProcessMesh.create(config, backend=...))"
    )
