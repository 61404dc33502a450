"""LAMB as DeepSpeed calls it: the rule of You et al. 2019, and a half-precision copy of the parameter."""

from __future__ import annotations

import pytest
import torch

from tests.harness.fixtures import on_ranks

pytestmark = pytest.mark.npu

LR, BETA1, BETA2, EPS, DECAY = 1e-2, 0.9, 0.999, 1e-6, 0.01


def reference(weight: torch.Tensor, gradients: list[torch.Tensor]) -> torch.Tensor:
    """Algorithm 2 of arXiv 1904.00962 in double precision, without bias correction."""
    weight, first, second = weight.double(), torch.zeros(()).double(), torch.zeros(()).double()
    for gradient in gradients:
        first = BETA1 * first + (1 - BETA1) * gradient.double()
        second = BETA2 * second + (1 - BETA2) * gradient.double() ** 2
        update = first / (second.sqrt() + EPS) + DECAY * weight
        weight = weight - LR * (weight.norm() / update.norm()).clamp(0.01, 10) * update
    return weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@on_ranks(1, backend=None)
def test_three_steps_follow_the_paper(dtype: torch.dtype) -> None:
    from deepspeed.ops.lamb import FusedLamb

    torch.manual_seed(0)
    master = torch.randn(64, 33)
    gradients = [torch.randn(64, 33).to(dtype) for _ in range(3)]
    expected = reference(master, gradients)
    options = {"lr": LR, "betas": (BETA1, BETA2), "eps": EPS, "weight_decay": DECAY, "bias_correction": False}
    leaf = torch.nn.Parameter(master.npu())
    copy = torch.nn.Parameter(master.to("npu", dtype))
    optimizer = FusedLamb([leaf], **options)
    for gradient in gradients:
        optimizer.step(grads=[[gradient.npu()]], output_params=[[copy]])
    torch.testing.assert_close(leaf.detach().cpu().double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(copy.detach(), leaf.detach().to(dtype))
