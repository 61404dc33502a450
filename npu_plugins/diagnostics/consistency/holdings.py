"""What a rank holds of a model in training, and which other ranks must hold the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.comm import ProcessMesh
from npu_plugins.diagnostics.consistency.compare import Copies, Named
from npu_plugins.diagnostics.errors import DiagnosticsError

Held = Callable[[nn.Parameter], torch.Tensor | None]
"""Gives what is compared of a parameter; None where this rank has nothing of it."""
WRAPPERS = ("module.", "_orig_mod.")
"""What DistributedDataParallel and torch.compile put before names."""


class Holder(NamedTuple):
    """A parameter of this rank."""

    name: str
    """Of the parameter in the Hugging Face model."""
    parameter: nn.Parameter


def zero_stage(model: Any) -> int:
    """Return the ZeRO stage of DeepSpeed's engine; 0 for anything else."""
    stage = getattr(model, "zero_optimization_stage", None)
    return int(stage()) if callable(stage) else 0


def bare(model: Any) -> nn.Module:
    """Return the model within DeepSpeed's engine, DistributedDataParallel and torch.compile."""
    while isinstance(getattr(model, "module", None), nn.Module) and not hasattr(model, "hf_model"):
        model = model.module
    return getattr(model, "_orig_mod", model)


def holders(model: Any) -> list[Holder]:
    """Return this rank's parameters under their Hugging Face names, in the model's order.

    Raises:
        DiagnosticsError: FSDP has divided them.
    """
    module = bare(model)
    names: dict[str, str] = {}
    if hasattr(module, "hf_model"):
        from npu_plugins.pipeline import hf_names

        names = hf_names(module)
    found = [Holder(_plain(names.get(name, name)), each) for name, each in module.named_parameters()]
    for name, parameter in found:
        if hasattr(parameter, "device_mesh"):
            raise DiagnosticsError(
                f"{name} is a DTensor, divided by FSDP or tensor parallelism of torch's, of which each rank "
                "has another part; ranks of DistributedDataParallel, DeepSpeed and a ProcessMesh can be "
                "compared"
            )
    return found


def _plain(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.removeprefix(wrapper)
    return name


def held_gradient(parameter: nn.Parameter) -> torch.Tensor | None:
    """Return a parameter's gradient after the reduction, where DeepSpeed's stage 0 or torch keeps it.

    BF16_Optimizer keeps an fp32 one (`_hp_grad`), accumulation in another dtype `grad_accum`.
    """
    for place in ("_hp_grad", "grad_accum", "grad"):
        gradient = getattr(parameter, place, None)
        if gradient is not None:
            return gradient
    return None


def held_weight(parameter: nn.Parameter) -> torch.Tensor | None:
    """Return a parameter where it is whole on this rank; ZeRO-3 has most of them divided."""
    divided = hasattr(parameter, "ds_id") and parameter.numel() != getattr(parameter, "ds_numel", -1)
    return None if divided else parameter


def held_piece(parameter: nn.Parameter) -> torch.Tensor | None:
    """Return what ZeRO-3 leaves of a parameter on this rank; the whole one without it."""
    return getattr(parameter, "ds_tensor", parameter)


def groups_of_copies(model: Any, mesh: ProcessMesh | None, what: str, held: Held) -> Iterator[Copies]:
    """Yield what must be the same on which ranks, in one order on all of them.

    - All replicas (dp; edp for the experts of a mixture) hold the same of each parameter.
    - The ranks of a tp group hold the same of each parameter that is not divided between them.
    - Without a mesh experts, which DeepSpeed divides among replicas, are left out.
    - The stages that share a tied parameter hold the same of it.

    Args:
        model: DeepSpeed's engine, DistributedDataParallel, or a module.
        mesh: of the job; None: all ranks of the default process group are replicas.
        what: gradient or parameter.
        held: what of each parameter is compared.
    """
    own = holders(model)
    if mesh is None:
        if dist.is_initialized() and dist.get_world_size() > 1:
            dense = [each for each in own if getattr(each.parameter, "allreduce", True)]
            everyone = tuple(range(dist.get_world_size()))
            yield _copies("dp", None, everyone, device_of(model, None), what, dense, held)
        return
    experts = [each for each in own if not getattr(each.parameter, "allreduce", True)]
    dense = [each for each in own if getattr(each.parameter, "allreduce", True)]
    whole = [each for each in own if not getattr(each.parameter, "tensor_model_parallel", False)]
    for axis, group in (("dp", dense), ("edp", experts), ("tp", whole)):
        if mesh.size(axis) > 1:
            of_axis = held_piece if axis == "tp" and held is held_weight else held
            yield _copies(axis, mesh.group(axis), mesh.ranks(axis), mesh.device, what, group, of_axis)
    names = {id(each.parameter): each.name for each in own}
    tied = getattr(bare(model), "tied", None) or {}
    for key in sorted(tied):
        shared = [Holder(names.get(id(each), key), each) for each in tied[key].parameters()]
        yield _copies("tied", tied[key].group, tied[key].ranks, mesh.device, what, shared, held)


def _copies(
    axis: str,
    group: Any,
    ranks: tuple[int, ...],
    device: torch.device,
    what: str,
    own: list[Holder],
    held: Held,
) -> Copies:
    found = [(each.name, held(each.parameter)) for each in own]
    tensors = [Named(what, name, tensor) for name, tensor in found if tensor is not None]
    return Copies(axis, group, tuple(ranks), device, tensors)


def device_of(model: Any, mesh: ProcessMesh | None) -> torch.device:
    """Return where the ranks communicate: the mesh's device, or that of the model's parameters."""
    return next(bare(model).parameters()).device if mesh is None else mesh.device


def master_weights(engine: Any, mesh: ProcessMesh | None) -> list[Named]:
    """Return the optimizer's own copies of parameters, where every replica keeps all of them.

    With bf16 and fp16 these are what trains; the parameters are their rounded values, which would hide small
    differences.
    """
    if not hasattr(engine, "zero_optimization_stage") or getattr(engine, "optimizer", None) is None:
        return []
    from npu_plugins.checkpoint.state import Trained

    trained = Trained.by_engine(engine, mesh)
    if not trained.is_replicated():
        return []
    return [
        Named("master weight", piece.name, piece.read(piece.holder))
        for piece in trained.pieces()
        if piece.holder is not piece.parameter and getattr(piece.parameter, "allreduce", True)
    ]
