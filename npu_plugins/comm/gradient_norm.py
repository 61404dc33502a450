"""The norm of a model's gradient whose parts lie on several ranks, each part counted once."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist

from npu_plugins.comm.errors import CommError
from npu_plugins.comm.mesh import ProcessMesh

EPSILON = 1e-6
"""Added to the norm before dividing by it, as torch and DeepSpeed do."""


def counts_here(parameter: torch.Tensor, mesh: ProcessMesh) -> bool:
    """Return whether this rank counts a parameter for the norm of its pipeline stage.

    A parameter that is divided (``tensor_model_parallel``, Megatron's mark, or the older ``model_parallel``)
    is counted by every rank of the tensor-parallel group, a replicated one by the first. A tied parameter's
    further copies on other stages (``ds_pipe_replicated``, DeepSpeed's mark) are counted by nobody.
    """
    if getattr(parameter, "ds_pipe_replicated", False):
        return False
    return mesh.rank("tp") == 0 or _divided(parameter)


def count_once(parameters: Iterable[torch.nn.Parameter], mesh: ProcessMesh) -> None:
    """Set marks so that DeepSpeed's own norms count every gradient once, where the mesh alone is not enough.

    Two of the norms of DeepSpeed 0.19.8 need them:

    - fp32 at stage 0 counts a parameter where the rank within tp × pp is 0 or it carries a mark
      (runtime/utils.py:394), so the replicated parameters of all stages but the first are left out. Here they
      get the mark ``model_parallel`` on the one rank that counts them.
    - bf16 and fp16 at stage 0, with any optimizer but FusedAdam, looks for the mark on the gradient
      (runtime/fp16/unfused_optimizer.py:216), so divided parameters count on tp rank 0 only. A hook puts the
      mark there when the gradient has been accumulated.

    To be called after divided and tied parameters got their marks; calling it twice changes nothing.
    """
    later_stage = mesh.rank("tp") == 0 and mesh.rank("pp") > 0
    for parameter in parameters:
        if later_stage:
            parameter.model_parallel = counts_here(parameter, mesh)
        if _divided(parameter) and parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_mark_gradient)


def _divided(parameter: torch.Tensor) -> bool:
    return any(getattr(parameter, mark, False) for mark in ("tensor_model_parallel", "model_parallel"))


def _mark_gradient(parameter: torch.Tensor) -> None:
    if parameter.grad is not None:  # a hook before this one may have taken it away
        parameter.grad.tensor_model_parallel = True


def gradient_norm(
    parameters: Iterable[torch.Tensor], mesh: ProcessMesh, *, norm_type: float = 2.0
) -> torch.Tensor:
    """Return the norm of the whole model's gradient, equal on every rank of the model-parallel group.

    Gradients must be averaged over the data-parallel group already. Every rank of the group must call this,
    also one whose parameters have no gradients. Expert parameters (``allreduce = False``, DeepSpeed's mark)
    are summed over the expert-parallel group as well. Norms are taken in fp32 whatever the gradients' dtype.

    Args:
        parameters: this rank's; those without a gradient are passed over.
        mesh: gives the groups.
        norm_type: p of the p-norm, above 0, or `math.inf`.

    Returns:
        A scalar in fp32 on `mesh.device`; nan or inf if a gradient is.

    Raises:
        CommError: norm_type is no such number, or a gradient is on another device than the mesh.
    """
    if not norm_type > 0:
        raise CommError(f"norm_type is {norm_type}; give a number above 0, or math.inf")
    norms: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.device != mesh.device:
            raise CommError(
                f"A gradient of shape {list(gradient.shape)} is on {gradient.device}, but the mesh "
                f"communicates on {mesh.device}; move the model there, or make the mesh with "
                f"device={gradient.device.type!r}"
            )
        if counts_here(parameter, mesh):
            expert = not getattr(parameter, "allreduce", True)
            norms[expert].append(torch.linalg.vector_norm(gradient.detach(), norm_type, dtype=torch.float32))
    dense, experts = (_combined(norms[expert], norm_type, mesh.device) for expert in (False, True))
    largest = math.isinf(norm_type)
    op = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
    if mesh.size("ep") > 1:
        dist.all_reduce(experts, op=op, group=mesh.group("ep"))
    total = torch.maximum(dense, experts) if largest else dense + experts
    if mesh.size("model") > 1:
        dist.all_reduce(total, op=op, group=mesh.group("model"))
    return total if largest else total.pow(1.0 / norm_type)


def clip_grad_norm_(
    parameters: Iterable[torch.Tensor], max_norm: float, mesh: ProcessMesh, *, norm_type: float = 2.0
) -> torch.Tensor:
    """Scale gradients in place so that the whole model's gradient is no longer than `max_norm`.

    As torch.nn.utils.clip_grad_norm_, for a model that lies on several ranks; nothing waits for the device.

    Args:
        parameters: this rank's.
        max_norm: 0 or more; `math.inf` only measures.
        mesh: gives the groups; see `gradient_norm`.
        norm_type: p of the p-norm, above 0, or `math.inf`.

    Returns:
        The norm before clipping, a scalar in fp32 on `mesh.device`.

    Raises:
        CommError: max_norm is below 0 or nan, or as `gradient_norm`.
    """
    if not max_norm >= 0:
        raise CommError(f"max_norm is {max_norm}; give a norm of 0 or more (math.inf only measures)")
    parameters = list(parameters)
    norm = gradient_norm(parameters, mesh, norm_type=norm_type)
    if not math.isinf(max_norm):
        factor = (max_norm / (norm + EPSILON)).clamp(max=1.0)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
    return norm


def _combined(norms: list[torch.Tensor], norm_type: float, device: torch.device) -> torch.Tensor:
    """The sum of p-th powers, or the largest for the infinity norm; 0 for none."""
    if not norms:
        return torch.zeros((), device=device)
    stacked = torch.stack(norms)
    return stacked.max() if math.isinf(norm_type) else stacked.pow(norm_type).sum()
