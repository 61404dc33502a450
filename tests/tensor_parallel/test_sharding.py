"""shard_model: Hugging Face models divided by their plans train like the whole model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from npu_plugins.tensor_parallel.shard import gather_full, shard_of
from npu_plugins.tensor_parallel.sharding import shard_model
from tests.harness.fixtures import on_ranks
from tests.tensor_parallel.models import CASES, LISTED, PRELOAD, Case, make_model, train, worst_difference


def make_mesh(tp: int, dp: int = 1) -> Any:
    from ds_configs.parallel import ParallelConfig
    from npu_plugins.comm import ProcessMesh

    return ProcessMesh.create(ParallelConfig(tp=tp, dp=dp))


def as_stored(name: str, parameter: Any, group: Any, tensor: Any = None) -> torch.Tensor:
    """What the ranks hold of a parameter (or of a tensor like it), put together as the whole model has it."""
    full = gather_full(parameter if tensor is None else tensor, shard_of(parameter), group)
    return full.t() if getattr(parameter, "stored_transposed", False) else full


def compare_training(case: Case, mesh: Any, dtype: torch.dtype, bound: float, **options: Any) -> str:
    """Train whole and divided; return what differs, or ''."""
    whole = make_model(case, dtype).to(mesh.device)
    sharded = shard_model(copy.deepcopy(whole), mesh, **options)
    group = mesh.group("tp")
    expected = train(whole, lambda name, p: p.grad.clone())
    found = train(sharded, lambda name, p: as_stored(name, p, group, p.grad))
    complaints = []
    for step, (loss, right) in enumerate(zip(found[0], expected[0], strict=True)):
        if abs(loss - right) > bound * abs(right):
            complaints.append(f"step {step}: loss {loss}, not {right}")
        difference, name = worst_difference(found[1][step], expected[1][step])
        if difference > bound:
            complaints.append(f"step {step}: gradient of {name} differs by {difference:.2e}")
    weights = {name: as_stored(name, p, group) for name, p in sharded.named_parameters()}
    difference, name = worst_difference(weights, dict(whole.named_parameters()))
    if difference > bound:
        complaints.append(f"{name} differs by {difference:.2e} in the end")
    return "; ".join([case.name, *complaints[:2]]) if complaints else ""


def check_all(
    tp: int, dtype: torch.dtype, bound: float, cases: Sequence[Case] = CASES, **options: Any
) -> None:
    mesh = make_mesh(tp)
    wrong = [compare_training(case, mesh, dtype, bound, **options) for case in cases]
    assert not any(wrong), "\n".join(filter(None, wrong))


# transformers computes norms, rotary angles and attention's softmax in fp32 whatever the weights are.
@on_ranks(4, backend="gloo", timeout=120, preload=PRELOAD)
def test_three_steps_equal_the_whole_model_on_4_ranks() -> None:
    check_all(4, torch.float64, 1e-6)


@on_ranks(2, backend="gloo", timeout=120, preload=PRELOAD)
def test_three_steps_equal_the_whole_model_with_divided_logits() -> None:
    check_all(2, torch.float64, 1e-6, gather_logits=False)


@on_ranks(2, timeout=120, preload=PRELOAD)
def test_three_steps_equal_the_whole_model_on_npus() -> None:
    """Those promised; the further styles of dividing are shown on CPUs."""
    check_all(2, torch.float32, 5e-6, CASES[:LISTED])
