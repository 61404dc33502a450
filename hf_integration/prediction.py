"""Forward passes through a pipeline for evaluation: logits from the last stage, on whatever rank asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist


def stage_logits(engine: Any, inputs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the logits `[batch, seq, vocab]` of a batch on the last stage's ranks, None on the others.

    The batch is cut along its first dim into as many micro-batches as keep all stages at work.

    Args:
        engine: the pipeline's.
        inputs: of the first stage, the same on all ranks of the replica.
    """
    pieces = cut(inputs, engine.mesh.size("pp"))
    pairs = iter([(piece, None) for piece in pieces])
    _, logits = engine.eval_batch(
        pairs, return_logits=True, compute_loss=False, reduce_output=None, num_micro_batches=len(pieces)
    )
    return torch.cat(logits) if isinstance(logits, list) else logits


def cut(inputs: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return a batch as up to ``count`` smaller ones; as it is where its tensors have not one length."""
    tensors = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
    lengths = {tensor.shape[0] if tensor.ndim else 0 for tensor in tensors}
    if len(lengths) != 1 or len(tensors) != len(inputs):
        return [dict(inputs)]
    rows = max(1, -(-lengths.pop() // count))
    pieces = {key: value.split(rows) for key, value in inputs.items()}
    number = len(next(iter(pieces.values())))
    return [{key: parts[index] for key, parts in pieces.items()} for index in range(number)]


def from_last_stage(engine: Any, tensor: torch.Tensor | None) -> torch.Tensor:
    """Return, on every rank of a pipeline, the tensor that its last stage has.

    Args:
        engine: the pipeline's.
        tensor: on the rank of the last stage; on the others it is not looked at.
    """
    source = engine.module.placement.rank_of[-1]
    mesh = engine.mesh
    described = None if tensor is None else (tuple(tensor.shape), tensor.dtype)
    shape, dtype = engine.control.of_pipeline(described)[source]
    if mesh.rank("pp") != source or tensor is None:
        tensor = torch.empty(shape, dtype=dtype, device=mesh.device)
    tensor = tensor.detach().contiguous()
    dist.broadcast(tensor, group_src=source, group=mesh.group("pp"))
    return tensor
