"""The micro-batches of one step: read before it begins, so that every rank knows whether there are enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from npu_plugins.pipeline.activations import digest
from npu_plugins.pipeline.errors import PipelineError


class MicroBatch(NamedTuple):
    """What goes into the first stage, and what the loss compares the last one's output with."""

    inputs: Any
    labels: Any


def read(
    next_batch: Callable[[], Any], count: int, divide: Callable[[Any, int], MicroBatch]
) -> list[MicroBatch]:
    """Return the micro-batches of a step.

    Args:
        next_batch: returns the next of the iterator, or raises StopIteration.
        count: how many make a step.
        divide: (batch, count) → its inputs and labels.

    Raises:
        PipelineError: the iterator ended, or gave something that is no micro-batch.
    """
    found: list[MicroBatch] = []
    while len(found) < count:
        try:
            batch = next_batch()
        except StopIteration:
            raise PipelineError(
                f"the data iterator ended after {len(found)} of the {count} micro-batches of a step; give "
                "one that "
                "is longer, wrap the loader in deepspeed.utils.RepeatingLoader, or count the steps of an "
                "epoch"
            ) from None
        found.append(divide(batch, count))
    return found


def micro_batch(batch: Any) -> MicroBatch:
    """Return inputs and labels of a batch.

    Raises:
        PipelineError: it is neither a pair nor a dict.
    """
    if isinstance(batch, Mapping):
        rest = {key: value for key, value in batch.items() if key != "labels"}
        return MicroBatch(rest, batch.get("labels"))
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        # A DataLoader makes lists of tuples; layers are given tuples, as by DeepSpeed.
        inputs, labels = (tuple(part) if isinstance(part, list) else part for part in batch)
        return MicroBatch(inputs, labels)
    length = f" of length {len(batch)}" if hasattr(batch, "__len__") else ""
    raise PipelineError(
        f"a batch is a {type(batch).__name__}{length}; the iterator must give pairs (inputs, labels), or "
        "dicts, whose "
        '"labels" go to the loss and the rest to the first layer'
    )


def to_device(value: Any, device: torch.device) -> Any:
    """Return nested tensors on `device`, cut off from any graph."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to(device, non_blocking=True), value)


def digests(batches: list[MicroBatch]) -> list[int]:
    """Return what tells ranks whether shapes are the same as before."""
    return [digest(batch.inputs) for batch in batches]
