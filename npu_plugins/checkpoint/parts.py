"""Which tensors of a whole model a rank has, where the others are, and how one is put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.comm import ProcessMesh
from npu_plugins.tensor_parallel.filling import full_shape
from npu_plugins.tensor_parallel.shard import gather_full, shard_of


class Kind(NamedTuple):
    """A tensor of the whole model."""

    dtype: torch.dtype
    shape: list[int]
    stage: int
    """Place on the ``pp`` axis of the ranks that have it, or of the first of them."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Parts:
    """A model of which this rank has some tensors, and of these perhaps shards."""

    model: Any
    """The Hugging Face model, on the meta device where other stages have its parameters."""
    kinds: Mapping[str, Kind]
    """Of all parameters and persistent buffers, tied ones once, in the model's order."""
    own: Mapping[str, torch.Tensor]
    """Those that this rank has."""

    def first_names(self) -> dict[str, str]:
        """Return the name in `kinds` of each parameter and buffer; tied ones have several names."""
        return _first_names(self.model)

    def put_together(self, name: str, mesh: ProcessMesh) -> torch.Tensor | None:
        """Return a whole tensor as transformers has it, on the first rank on the axes ``tp`` and ``pp``.

        A collective of the ranks with the same data-parallel place. On other ranks the result is None, or
        the tensor.
        """
        kind, full = self.kinds[name], None
        if mesh.rank("pp") == kind.stage:
            own = self.own[name]
            full = gather_full(own, shard_of(own), mesh.group("tp"))
            full = full.t() if getattr(own, "stored_transposed", False) else full
        if kind.stage == 0 or mesh.rank("tp") > 0:
            return full
        group = mesh.group("pp")
        if full is not None:
            dist.send(full.contiguous(), group=group, group_dst=0)
        elif mesh.rank("pp") == 0:
            full = torch.empty(kind.shape, dtype=kind.dtype, device=mesh.device)
            dist.recv(full, group=group, group_src=kind.stage)
        return full


def parts_of(model: nn.Module, mesh: ProcessMesh) -> Parts:
    """Return what this rank has of a model (with pipeline stages a collective of the pipeline).

    Args:
        model: a Hugging Face model, divided over ``tp`` or not, or what `split_model` made of one.
        mesh: of the job.

    Raises:
        CheckpointError: the mesh has pipeline stages, but the model is not split into them; or its parameters
            are not whole shards (ZeRO-3).
    """
    whole: Any = getattr(model, "hf_model", None)
    if whole is not None:
        everyone = model.control.of_pipeline(_own_kinds(whole, mesh.rank("pp")))
        names = [name for name, first in _first_names(whole).items() if name == first]
        kinds = {name: next(found[name] for found in everyone if name in found) for name in names}
        return Parts(whole, kinds, _own(whole))
    if mesh.size("pp") > 1:
        raise CheckpointError(
            f"save_hf writes a whole model, but with pp {mesh.size('pp')} each rank has the layers of its "
            "stage only, and nothing says which of the whole model's they are; give it what split_model made "
            "(engine.module)"
        )
    return Parts(model, _own_kinds(model, 0), _own(model))


def _own(model: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and persistent buffers that are here, tied ones once."""
    tensors: dict[str, torch.Tensor] = {}
    first = _first_names(model)
    for name, value in model.state_dict(keep_vars=True).items():
        if first[name] != name or value.is_meta:
            continue
        if value.numel() == 0 and getattr(value, "ds_numel", 0):  # as DeepSpeed leaves it
            raise CheckpointError(
                f"{name} is divided by ZeRO-3 besides, so that no rank has a whole shard of it; save within "
                "deepspeed.zero.GatheredParameters(list(model.parameters()))"
            )
        tensors[name] = value
    return tensors


def _own_kinds(model: nn.Module, stage: int) -> dict[str, Kind]:
    return {name: Kind(tensor.dtype, full_shape(tensor), stage) for name, tensor in _own(model).items()}


def _first_names(model: nn.Module) -> dict[str, str]:
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {name: first.setdefault(id(value), name) for name, value in state.items()}
