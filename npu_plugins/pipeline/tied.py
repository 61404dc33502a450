"""Weights that several stages share: one copy on each of their ranks, kept equal by summing the gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.comm import ProcessMesh
from npu_plugins.comm.devices import inherited_timeout


@dataclass(frozen=True)
class TiedModule:
    """A module that this rank shares with other ranks of its pipeline."""

    ranks: tuple[int, ...]
    """Global ranks that hold a copy; the first one's is the one that counts for norms and at the start."""
    group: Any
    """Their process group."""
    module: nn.Module
    attributes: tuple[str, ...]
    """Names of its tied parameters, dotted."""

    def parameters(self) -> list[nn.Parameter]:
        """Return the tied parameters."""
        return [self.module.get_parameter(name) for name in self.attributes]


def make_tied(
    holders: dict[str, tuple[int, ...]],
    modules: dict[str, nn.Module],
    attributes: dict[str, tuple[str, ...]],
    mesh: ProcessMesh,
) -> dict[str, TiedModule]:
    """Make the groups of the tied modules and start their copies equal; every rank of the world calls this.

    Args:
        holders: by key, the pipeline ranks that hold a copy; keys with one holder need nothing.
        modules: by key, this rank's copies.
        attributes: by key, the names of the tied parameters.
        mesh: of the job.
    """
    found = {}
    for key in sorted(holders):
        places = holders[key]
        if len(places) < 2:
            continue
        for pipeline in mesh.topology.groups("pp"):
            ranks = tuple(pipeline[place] for place in places)
            own = mesh.global_rank in ranks
            if ranks == tuple(pipeline):
                group = mesh.group("pp")
            else:
                group = dist.new_group(
                    list(ranks), timeout=inherited_timeout(mesh.device), backend=mesh.backend
                )
            if own:
                found[key] = TiedModule(ranks, group, modules[key], attributes[key])
    for tied in found.values():
        for parameter in tied.parameters():
            dist.broadcast(parameter.data, tied.ranks[0], group=tied.group)
            # DeepSpeed's mark: norms count a replicated parameter where it is False.
            parameter.ds_pipe_replicated = mesh.global_rank != tied.ranks[0]
    return found


def reduce_tied_gradients(tied: Iterable[TiedModule], gradient_of: Any) -> None:
    """Sum the gradients of all copies, into each of them.

    Args:
        tied: of this rank, in the same order on all ranks.
        gradient_of: parameter → the tensor in which the optimizer will look for its gradient.
    """
    with torch.no_grad():
        for each in tied:
            for parameter in each.parameters():
                dist.all_reduce(gradient_of(parameter), group=each.group)
