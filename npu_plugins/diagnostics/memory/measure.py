"""Measuring what a rank takes of its device's memory; any device, any backend."""

from __future__ import annotations

import os
import re
import resource
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.comm import ProcessMesh
from npu_plugins.diagnostics.consistency.holdings import bare, holders
from npu_plugins.diagnostics.memory.rank import RankMemory

_LAYER = re.compile(r"(.*?)\.(\d+)\.")
DEPTH = 4
"""Of lists and dicts in which DeepSpeed's optimizers keep tensors."""


def measure_memory(
    model: Any = None,
    optimizer: Any = None,
    mesh: ProcessMesh | None = None,
    *,
    device: torch.device | None = None,
    reset_peak: bool = False,
) -> RankMemory:
    """Return what this rank takes; nothing is communicated.

    Args:
        model: DeepSpeed's engine, DistributedDataParallel or a module, whose tensors are counted; None: only
            what the device and the allocator tell.
        optimizer: by default DeepSpeed's engine's.
        mesh: of the job, for the rank's place.
        device: by default the mesh's, or the model's.
        reset_peak: whether the peak is that of the time since now at the next measurement.
    """
    mesh = getattr(model, "mesh", None) if mesh is None else mesh
    optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
    module = None if model is None else bare(model)
    if device is None:
        own = None if module is None else next(module.parameters(), None)
        device = mesh.device if mesh is not None else torch.device("cpu") if own is None else own.device
    device = torch.device("cpu") if device.type == "cpu" else device  # which accelerate numbers
    sizes = _of_host() if device.type == "cpu" else _of_device(device, reset_peak)
    place = ""
    if mesh is not None:
        here = mesh.coordinate()
        axes = {"tp": here.tp, "pp": here.pp, "dp": here.dp}
        place = ", ".join(f"{axis} {at}" for axis, at in axes.items() if mesh.size(axis) > 1)
    counted = {} if module is None else _counted(module, optimizer, device)
    return RankMemory(
        rank=dist.get_rank() if dist.is_initialized() else 0,
        host=socket.gethostname(),
        device=str(device),
        place=place,
        holds="" if module is None else what_it_holds([each.name for each in holders(module)]),
        pid=os.getpid(),
        **sizes,
        **counted,
    )


def memory_of_all(mine: RankMemory) -> list[RankMemory]:
    """Return what all ranks take, on every rank; every rank must call this."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [mine]
    everyone: list[RankMemory] = [mine] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def what_it_holds(names: Iterable[str]) -> str:
    """Return in words what parameters are there: ``embedding, layers 0-3``, by their Hugging Face names."""
    layers: set[int] = set()
    others: dict[str, None] = {}
    for name in names:
        match = _LAYER.match(f"{name}.")
        if match:
            layers.add(int(match.group(2)))
        elif "embed" in name or name.endswith(("wte.weight", "wpe.weight")):
            others["embedding"] = None
        elif "head" in name or name.startswith(("score.", "embed_out")):
            others["head"] = None
    if layers:
        whole = len(layers) == max(layers) - min(layers) + 1
        span = (
            f"{min(layers)}-{max(layers)}"
            if whole and len(layers) > 1
            else ", ".join(map(str, sorted(layers)))
        )
        others[f"layer{'s' * (len(layers) > 1)} {span}"] = None
    return ", ".join(others)


def _of_device(device: torch.device, reset_peak: bool) -> dict[str, int]:
    module = torch.get_device_module(device)
    free, total = module.mem_get_info(device)
    found = {
        "total": total,
        "free": free,
        "allocated": module.memory_allocated(device),
        "reserved": module.memory_reserved(device),
        "peak": module.max_memory_allocated(device),
        "peak_reserved": module.max_memory_reserved(device),
    }
    if reset_peak:
        module.reset_peak_memory_stats(device)
    return found


def _of_host() -> dict[str, int]:
    """What the process takes: the host has no allocator that tells, and its peak is that of all time."""
    memory, own = psutil.virtual_memory(), psutil.Process().memory_info().rss
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "total": memory.total,
        "free": memory.available,
        "allocated": own,
        "reserved": own,
        "peak": max(peak, own),
        "peak_reserved": max(peak, own),
    }


def _counted(module: nn.Module, optimizer: Any, device: torch.device) -> dict[str, int]:
    """Bytes of storages on the device; one that serves several purposes counts for the first."""
    seen: set[int] = set()
    parameters = list(module.parameters())
    held = [*parameters, *(getattr(each, "ds_tensor", None) for each in parameters), *module.buffers()]
    gradients = [
        getattr(each, place, None) for each in parameters for place in ("grad", "_hp_grad", "grad_accum")
    ]
    gradients += _of_optimizer(optimizer, gradient=True)
    return {
        "parameters": _bytes(held, device, seen),
        "gradients": _bytes(gradients, device, seen),
        "optimizer": _bytes(_of_optimizer(optimizer, gradient=False), device, seen),
    }


def _of_optimizer(optimizer: Any, gradient: bool) -> list[torch.Tensor]:
    """Tensors within an optimizer, and those that it wraps: gradients and buffers for them, or the rest."""
    found: list[torch.Tensor] = []
    while optimizer is not None:
        for name, value in vars(optimizer).items():
            named_so = "grad" in name or "ipg" in name
            if named_so == gradient and name not in ("module", "optimizer"):
                found += _tensors(value, DEPTH)
        if gradient:
            held = [each for group in getattr(optimizer, "param_groups", ()) for each in group["params"]]
            found += [each.grad for each in held if each.grad is not None]
        optimizer = getattr(optimizer, "optimizer", None)
    return found


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for key, each in value.items():
            yield from _tensors(key, 0)
            yield from _tensors(each, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each, depth - 1)
    elif depth and type(value).__module__.startswith("deepspeed") and hasattr(value, "buffer"):
        yield from _tensors(value.buffer, depth - 1)  # ZeRO's buckets


def _bytes(tensors: Iterable[torch.Tensor | None], device: torch.device, seen: set[int]) -> int:
    total = 0
    for tensor in tensors:
        if tensor is None or tensor.device.type != device.type:
            continue
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total
