"""Where an optimizer of DeepSpeed's keeps the master weight and the state of each parameter of this rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from deepspeed.runtime.base_optimizer import ZeROOptimizer

from npu_plugins.checkpoint.errors import CheckpointError


class Place(NamedTuple):
    """A piece of a parameter, and the tensor that the inner optimizer updates for it."""

    name: str
    """Of the parameter, in the pipeline."""
    parameter: torch.nn.Parameter
    group: int
    """The parameter group."""
    holder: torch.Tensor
    """The tensor that the inner optimizer knows; several parameters may lie in it."""
    start: int
    """Where the piece begins in the holder."""
    within: int
    """Where the piece begins in the parameter."""
    length: int
    """How many elements it has; 0 where ZeRO gave the parameter to other replicas altogether."""


def inner_optimizer(engine: Any) -> torch.optim.Optimizer:
    """Return the optimizer that does the arithmetic, within DeepSpeed's that does the rest."""
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def is_partitioned(engine: Any) -> bool:
    """Whether the optimizer's state is divided between replicas and saved in files of its own.

    DeepSpeed's BF16_Optimizer divides it under ZeRO stage 0 too.
    """
    return isinstance(engine.optimizer, ZeROOptimizer)


def _groups(engine: Any) -> list[list[torch.nn.Parameter]]:
    """The model's parameters by group, in the optimizer's order."""
    optimizer = engine.optimizer
    for name in ("bf16_groups", "bit16_groups", "fp16_groups"):
        if hasattr(optimizer, name):
            return [list(group) for group in getattr(optimizer, name)]
    return [list(group["params"]) for group in optimizer.param_groups]


def named_groups(engine: Any) -> list[list[str]]:
    """Return the names of the optimizer's parameters by group, in its order."""
    return [[engine.param_names[parameter] for parameter in group] for group in _groups(engine)]


def hyperparameters(engine: Any) -> list[dict[str, Any]]:
    """Return what each group has besides parameters."""
    groups = inner_optimizer(engine).param_groups
    return [{key: value for key, value in group.items() if key not in NOT_SETTINGS} for group in groups]


NOT_SETTINGS = ("params", "param_names")
"""Keys of a parameter group that are no hyperparameters."""

KINDS = ("betas", "momentum", "alpha", "rho", "etas", "lambd", "decay_rate")
"""Hyperparameters by which kinds of optimizers differ."""


def check_places(engine: Any) -> None:
    """Refuse an optimizer of which DeepSpeed does not know where its parameters are.

    With round_robin_gradients and several replicas ZeRO lays parameters out in another order, but DeepSpeed
    0.19.8 links them in the usual one (stage_1_and_2.py:834), and writes that into its files.

    Raises:
        CheckpointError: it is such a one.
    """
    if getattr(engine.optimizer, "round_robin_gradients", False) and engine.mesh.size("dp") > 1:
        raise CheckpointError(
            "zero_optimization.round_robin_gradients is true with several replicas, of which DeepSpeed "
            "0.19.8 notes wrong places of parameters in its checkpoints; leave it out"
        )


def places(engine: Any) -> Iterator[Place]:
    """Yield where each parameter is, in the optimizer's order."""
    optimizer, inner = engine.optimizer, inner_optimizer(engine)
    flat = is_partitioned(engine) or hasattr(optimizer, "fp32_groups_flat")
    for index, group in enumerate(_groups(engine)):
        holders = list(inner.param_groups[index]["params"])
        offset = 0
        for position, parameter in enumerate(group):
            name, length = engine.param_names[parameter], parameter.numel()
            if is_partitioned(engine):
                mapping = parameter._hp_mapping
                if mapping is None:
                    yield Place(name, parameter, index, holders[0], 0, 0, 0)
                    continue
                there, here = mapping.hp_fragment_address, mapping.lp_fragment_address
                yield Place(name, parameter, index, holders[0], there.start, here.start, there.numel)
            elif flat:
                yield Place(name, parameter, index, holders[0], offset, 0, length)
                offset += length
            else:
                yield Place(name, parameter, index, holders[position], 0, 0, length)
