"""What is left to reduce when a step's micro-batches are done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from npu_plugins.pipeline.gradients import complete_gradients


def engine(replicas: int = 1, **other: bool) -> Any:
    """The part of an engine that is asked: a used, an unused and a frozen layer."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    module[0](torch.ones(1, 2)).sum().backward()
    told = {"using_bf16_optimizer": False, "has_moe_layers": False, "zero": False} | other
    return SimpleNamespace(
        module=module,
        mesh=SimpleNamespace(size={"dp": replicas}.__getitem__),
        zero_optimization=lambda: told["zero"],
        **told,
    )


def test_one_replica_has_nothing_to_reduce() -> None:
    """Gradients stay as they are; what has none gets zeros, as it would from a reduction."""
    alone = engine()
    used, unused, frozen = alone.module
    before, values = used.weight.grad, used.weight.grad.clone()
    assert complete_gradients(alone)
    assert used.weight.grad is before and torch.equal(before, values)
    assert torch.equal(unused.weight.grad, torch.zeros(2, 2)) and frozen.weight.grad is None


@pytest.mark.parametrize(
    "told", [{"replicas": 2}, {"zero": True}, {"using_bf16_optimizer": True}, {"has_moe_layers": True}]
)
def test_deepspeed_reduces_otherwise(told: dict[str, Any]) -> None:
    several = engine(**told)
    assert not complete_gradients(several)
    assert several.module[1].weight.grad is None
