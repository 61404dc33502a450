"""FusedAdam on the NPU against torch.optim on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.accelerator.conftest import KeptWorld

pytestmark = pytest.mark.npu
STEPS = 3
CASES = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.integers(1, 200), min_size=1, max_size=4),
        "lr": st.sampled_from([1e-4, 1e-2]),
        "betas": st.sampled_from([(0.9, 0.999), (0.8, 0.95)]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "adam_w_mode": st.booleans(),
        "seed": st.integers(0, 2**31),
    }
)


def tensors(sizes: list[int], seed: int) -> list[list[torch.Tensor]]:
    """Parameters, then the gradients of each step, away from zero."""
    generator = torch.Generator().manual_seed(seed)
    params = [torch.randn(size, generator=generator) for size in sizes]
    sign = [
        [torch.randint(0, 2, (size,), generator=generator) * 2.0 - 1 for size in sizes] for _ in range(STEPS)
    ]
    return [params, *([s * (0.1 + torch.rand(s.shape, generator=generator)) for s in step] for step in sign)]


def fused(case: dict[str, Any], dtype: torch.dtype, bias_correction: bool) -> list[torch.Tensor]:
    """On a rank: the parameters after FusedAdam's steps."""
    from deepspeed.ops.adam import FusedAdam

    params, *gradients = tensors(case["sizes"], case["seed"])
    held = [torch.nn.Parameter(p.to(dtype).npu()) for p in params]
    options = {name: case[name] for name in ("lr", "betas", "weight_decay", "adam_w_mode")}
    optimizer = FusedAdam(held, bias_correction=bias_correction, **options)
    for step in gradients:
        for parameter, grad in zip(held, step, strict=True):
            parameter.grad = grad.to(dtype).npu()
        optimizer.step()
    return [p.detach().float().cpu() for p in held]


def reference(case: dict[str, Any], dtype: torch.dtype) -> list[torch.Tensor]:
    """The parameters after torch's steps in fp32."""
    params, *gradients = tensors(case["sizes"], case["seed"])
    held = [torch.nn.Parameter(p.to(dtype).float()) for p in params]
    kind = torch.optim.AdamW if case["adam_w_mode"] else torch.optim.Adam
    optimizer = kind(held, lr=case["lr"], betas=case["betas"], weight_decay=case["weight_decay"])
    for step in gradients:
        for parameter, grad in zip(held, step, strict=True):
            parameter.grad = grad.to(dtype).float()
        optimizer.step()
    return [p.detach() for p in held]


@given(case=CASES)
def test_fp32_is_torchs(one_rank: KeptWorld, case: dict[str, Any]) -> None:
    (result,) = one_rank.run(fused, case, torch.float32, True)
    for ours, theirs in zip(result, reference(case, torch.float32), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
@given(case=CASES)
def test_half_precision_is_within_its_rounding(
    one_rank: KeptWorld, dtype, bound: float, case: dict[str, Any]
) -> None:
    (result,) = one_rank.run(fused, case, dtype, True)
    for ours, theirs in zip(result, reference(case, dtype), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bias_correction_can_be_off(one_rank: KeptWorld, dtype: torch.dtype) -> None:
    case = {
        "sizes": [50],
        "lr": 0.01,
        "betas": (0.9, 0.99),
        "weight_decay": 0.0,
        "adam_w_mode": True,
        "seed": 3,
    }
    params, *gradients = tensors(case["sizes"], case["seed"])
    expected, mean, square = params[0].to(dtype).float(), torch.zeros(50), torch.zeros(50)
    for (grad,) in gradients:
        grad = grad.to(dtype).float()
        mean, square = 0.9 * mean + 0.1 * grad, 0.99 * square + 0.01 * grad**2
        expected = expected - 0.01 * mean / (square.sqrt() + 1e-8)
    (result,) = one_rank.run(fused, case, dtype, False)
    bound = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(result[0], expected, rtol=bound, atol=bound)
