"""`check_gradients` and `check_parameters`: all ranks of a job compare what they must hold alike.

What can be compared, and when:

| | gradients, after the reduction and before the optimizer's step | parameters, any time between two steps |
|---|---|---|
| DistributedDataParallel, DeepSpeed stage 0 | all, between replicas | all, and master weights |
| tensor parallelism, without ZeRO | those of undivided parameters too, between tp ranks | the same |
| pipeline, without ZeRO | those of tied parameters too, between stages | the same |
| ZeRO 1 and 2 | none: each replica keeps the sum of another part | all |
| ZeRO 3 | none | undivided ones between tp ranks; between replicas those that ZeRO leaves whole |

Before the reduction the gradients of replicas differ, each being of other samples. A gradient that goes wrong
in the reduction, or that ZeRO spoils in the one place where it is kept, makes all ranks equally wrong, which
no comparison of ranks can find; a comparison with a run on one card does (`npu-plugins compare-loss`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.comm import ProcessMesh
from npu_plugins.diagnostics.consistency.compare import Copies, compare
from npu_plugins.diagnostics.consistency.difference import Difference, Outcome
from npu_plugins.diagnostics.consistency.holdings import (
    device_of,
    groups_of_copies,
    held_gradient,
    held_weight,
    master_weights,
    zero_stage,
)
from npu_plugins.diagnostics.errors import DiagnosticsError


class InconsistentRanksError(DiagnosticsError):
    """Ranks hold different gradients or parameters; `outcome` says which."""

    def __init__(self, outcome: Outcome) -> None:
        """Take what was found."""
        super().__init__(str(outcome))
        self.outcome = outcome


def check_gradients(model: Any, mesh: ProcessMesh | None = None, *, step: int | None = None) -> Outcome:
    """Compare the gradients of all ranks, bit by bit; every rank must call this.

    To be called when they have been reduced (after the last `backward` of a step under
    DistributedDataParallel) and before they are clipped, which spreads a fault over all parameters.

    Args:
        model: DeepSpeed's engine, DistributedDataParallel, or a module.
        mesh: of the job; None: all ranks are replicas.
        step: for the report.

    Returns:
        What was found, the same on every rank.

    Raises:
        DiagnosticsError: there is nothing that two ranks must hold alike: ZeRO has divided the gradients, no
            backward has run, or the job has one rank.
    """
    stage = zero_stage(model)
    if stage:
        raise DiagnosticsError(
            f"ZeRO stage {stage} keeps each gradient on one replica only, so that there is nothing to "
            "compare; check the parameters, or train with stage 0"
        )
    mesh = _mesh_of(model, mesh)
    groups = list(groups_of_copies(model, mesh, "gradient", held_gradient))
    return _outcome("gradients", groups, device_of(model, mesh), step)


def check_parameters(model: Any, mesh: ProcessMesh | None = None, *, step: int | None = None) -> Outcome:
    """Compare the parameters of all ranks, bit by bit, and master weights; every rank must call this.

    Args:
        model: DeepSpeed's engine, DistributedDataParallel, or a module.
        mesh: of the job; None: all ranks are replicas.
        step: for the report.

    Returns:
        What was found, the same on every rank.

    Raises:
        DiagnosticsError: there is nothing that two ranks must hold alike.
    """
    mesh = _mesh_of(model, mesh)
    groups = list(groups_of_copies(model, mesh, "parameter", held_weight))
    for group in groups:
        if group.axis == "dp":
            group.tensors += master_weights(model, mesh)
    return _outcome("parameters", groups, device_of(model, mesh), step)


def raise_together(outcome: Outcome) -> None:
    """Raise on every rank if a check has found differences.

    Raises:
        InconsistentRanksError: it has.
    """
    if outcome.differences:
        raise InconsistentRanksError(outcome)


def _mesh_of(model: Any, mesh: ProcessMesh | None) -> ProcessMesh | None:
    """Return the mesh that was given, or that our engine of a pipeline has.

    Raises:
        DiagnosticsError: there is none, though the ranks are more than replicas of each other.
    """
    mesh = getattr(model, "mesh", None) if mesh is None else mesh
    degree = getattr(model, "autotp_size", None)
    if mesh is None and callable(degree) and degree() > 1:
        raise DiagnosticsError(
            f"DeepSpeed's AutoTP divides the model among {degree()} ranks, of which there is no ProcessMesh; "
            "divide it with shard_model, or NpuTrainer, and give their mesh"
        )
    return mesh


def _outcome(what: str, groups: list[Copies], device: torch.device, step: int | None) -> Outcome:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        raise DiagnosticsError(f"There is one rank, so that no {what} can be compared; leave the check out")
    found = [difference for group in groups if (difference := compare(group)) is not None]
    count = len({(each.what, each.name) for group in groups for each in group.tensors})
    state = torch.tensor([len(found), count], device=device)
    dist.all_reduce(state, op=dist.ReduceOp.MAX)
    differing, most = state.tolist()
    if not most:
        reason = (
            "no backward has run, or ZeRO has divided them"
            if what == "gradients"
            else "ZeRO has divided them"
        )
        raise DiagnosticsError(
            f"No two ranks hold {what} that must be the same ({reason}); leave the check out"
        )
    if not differing:
        return Outcome(what, most, (), step)
    everyone: list[list[Difference]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, found)
    unique = {(each.axis, each.ranks): each for own in everyone for each in own}
    return Outcome(what, most, tuple(unique.values()), step)
