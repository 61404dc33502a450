"""The host optimizers, compiled and in torch, against torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins.accelerator.op_builders import CPUAdagradBuilder, CPUAdamBuilder, CPULionBuilder
from npu_plugins.errors import NpuPluginsError

BUILDERS = {"adam": CPUAdamBuilder, "adagrad": CPUAdagradBuilder, "lion": CPULionBuilder}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STEPS = 4

# A rounding of the parameter per step, and of the state where it is narrow too.
TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-6},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    torch.float16: {"rtol": 3e-3, "atol": 3e-3},
}

sizes = st.integers(1, 300)
dtypes = st.sampled_from(DTYPES)
learning_rates = st.sampled_from([1e-4, 1e-3, 1e-2])
decays = st.sampled_from([0.0, 0.01, 0.3])
seeds = st.integers(0, 2**31)
betas = st.sampled_from([(0.9, 0.999), (0.8, 0.95), (0.95, 0.9999)])
implementations = pytest.mark.parametrize("implementation", ["compiled", "torch"])


@cache
def module(name: str, implementation: str) -> Any:
    """The functions of an optimizer: compiled for this host, or the torch fallback."""
    builder = BUILDERS[name]()
    loaded = builder.load() if implementation == "compiled" else builder.fallback()
    is_compiled = type(loaded).__name__ == "module"
    if implementation == "compiled" and not is_compiled:
        pytest.skip("no C++ compiler here")
    return loaded


def gradients(seed: int, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """One gradient a step, away from zero: near it Adam and Lion turn rounding into whole steps."""
    generator = torch.Generator().manual_seed(seed)
    sign = torch.randint(0, 2, (STEPS, size), generator=generator) * 2 - 1
    return list((sign * (0.1 + torch.rand(STEPS, size, generator=generator))).to(dtype))


def start(seed: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Initial parameters."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed + 1)).to(dtype)


def compare(
    update: Callable[[int, torch.Tensor, torch.Tensor], Any],
    reference: Callable[[int, torch.Tensor, torch.Tensor], Any],
    seed: int,
    size: int,
    dtype: torch.dtype,
) -> None:
    """Take the same steps with both; the reference starts each from the other's rounded parameters."""
    param = start(seed, size, dtype)
    for step, grad in enumerate(gradients(seed, size, dtype), start=1):
        expected = param.float().clone()
        reference(step, expected, grad.float())
        update(step, param, grad.clone())
        torch.testing.assert_close(param.float(), expected, **TOLERANCE[dtype])


@implementations
@given(
    size=sizes, dtype=dtypes, lr=learning_rates, decay=decays, seed=seeds, betas=betas, adamw=st.booleans()
)
def test_adam_is_torchs(implementation, size, dtype, lr, decay, seed, betas, adamw) -> None:
    op = module("adam", implementation)
    mean, square = torch.zeros(size), torch.zeros(size)
    held = torch.nn.Parameter(torch.zeros(size))
    kind = torch.optim.AdamW if adamw else torch.optim.Adam
    optimizer = kind([held], lr=lr, betas=betas, eps=1e-8, weight_decay=decay)

    def reference(step: int, param: torch.Tensor, grad: torch.Tensor) -> None:
        held.data, held.grad = param, grad
        optimizer.step()

    def update(step: int, param: torch.Tensor, grad: torch.Tensor) -> None:
        op.adam_update(7, step, lr, *betas, 1e-8, decay, True, param, grad, mean, square)

    op.create_adam(7, lr, *betas, 1e-8, decay, adamw, False)
    compare(update, reference, seed, size, dtype)
    op.destroy_adam(7)
    state = optimizer.state[held]
    # Under L2 the means hold the decayed parameter, rounded at each step of the narrow one.
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(mean, state["exp_avg"], **bound)
    torch.testing.assert_close(square, state["exp_avg_sq"], **bound)


@implementations
@given(size=sizes, dtype=dtypes, lr=learning_rates, decay=decays, seed=seeds)
def test_adagrad_is_torchs(implementation, size, dtype, lr, decay, seed) -> None:
    op = module("adagrad", implementation)
    square = torch.zeros(size)
    held = torch.nn.Parameter(torch.zeros(size))
    optimizer = torch.optim.Adagrad([held], lr=lr, eps=1e-10, weight_decay=decay)

    def reference(step: int, param: torch.Tensor, grad: torch.Tensor) -> None:
        held.data, held.grad = param, grad
        optimizer.step()

    def update(step: int, param: torch.Tensor, grad: torch.Tensor) -> None:
        op.adagrad_update(7, step, lr, 1e-10, decay, param, grad, square)

    op.create_adagrad(7, lr, 1e-10, decay, False)
    compare(update, reference, seed, size, dtype)
    op.destroy_adagrad(7)


@implementations
@given(size=sizes, dtype=dtypes, lr=learning_rates, decay=decays, seed=seeds, betas=betas)
def test_lion_is_the_papers(implementation, size, dtype, lr, decay, seed, betas) -> None:
    op = module("lion", implementation)
    mean, expected_mean = torch.zeros(size), torch.zeros(size)
    beta1, beta2 = betas

    def reference(step: int, param: torch.Tensor, grad: torch.Tensor) -> None:
        direction = torch.sign(beta1 * expected_mean + (1 - beta1) * grad)
        param.mul_(1 - lr * decay).sub_(lr * direction)
        expected_mean.mul_(beta2).add_(grad, alpha=1 - beta2)

    def update(step: int, param: torch.Tensor, grad: torch.Tensor) -> None:
        op.lion_update(7, step, lr, beta1, beta2, decay, param, grad, mean)

    op.create_lion(7, lr, beta1, beta2, decay, False)
    compare(update, reference, seed, size, dtype)
    op.destroy_lion(7)
    torch.testing.assert_close(mean, expected_mean, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("adamw", [True, False])
def test_states_may_be_as_narrow_as_the_parameters(dtype: torch.dtype, adamw: bool) -> None:
    compiled, fallback = module("adam", "compiled"), module("adam", "torch")
    tensors = {
        op: [start(s, 1000, dtype) for s in (1, 5)] + [torch.zeros(1000, dtype=dtype) for _ in range(2)]
        for op in (compiled, fallback)
    }
    for op, (param, grad, mean, square) in tensors.items():
        op.create_adam(3, 1e-2, 0.9, 0.99, 1e-8, 0.1, adamw, False)
        for step in range(1, 4):
            op.adam_update(3, step, 1e-2, 0.9, 0.99, 1e-8, 0.1, True, param, grad.clone(), mean, square)
    for ours, theirs in zip(tensors[fallback], tensors[compiled], strict=True):
        torch.testing.assert_close(ours, theirs)


@implementations
def test_bias_correction_can_be_off(implementation: str) -> None:
    op = module("adam", implementation)
    param, grad, mean, square = torch.ones(9), torch.full((9,), 0.5), torch.zeros(9), torch.zeros(9)
    op.create_adam(5, 0.1, 0.9, 0.99, 1e-8, 0.0, True, False)
    op.adam_update(5, 1, 0.1, 0.9, 0.99, 1e-8, 0.0, False, param, grad, mean, square)
    torch.testing.assert_close(param, torch.full((9,), 1 - 0.1 * 0.05 / (0.01 * 0.25) ** 0.5))


@given(size=sizes, seed=seeds, decay=decays)
def test_rollback_undoes_an_update(size: int, seed: int, decay: float) -> None:
    op = module("adam", "torch")
    op.create_adam(2, 1e-3, 0.9, 0.999, 1e-8, decay, True, False)
    tensors = [start(seed, size, torch.float32), gradients(seed, size, torch.float32)[0], torch.zeros(size)]
    tensors.append(torch.zeros(size))
    arguments = (2, 1, 1e-3, 0.9, 0.999, 1e-8, decay, True)
    before = [tensor.clone() for tensor in tensors]
    op.adam_update(*arguments, *tensors)
    op.adam_rollback(*arguments, *tensors)
    for now, then in zip(tensors, before, strict=True):
        torch.testing.assert_close(now, then, rtol=1e-4, atol=1e-5)


def test_tiles_reach_every_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npu_plugins.accelerator.kernels.tiles.TILE_ELEMENTS", 7)
    op = module("adam", "torch")
    op.create_adam(4, 0.1, 0.9, 0.999, 1e-8, 0.0, True, False)
    for param in (torch.zeros(5, 4), torch.zeros(4, 5).t()):  # the second is not contiguous
        op.adam_update(
            4,
            1,
            0.1,
            0.9,
            0.999,
            1e-8,
            0.0,
            True,
            param,
            torch.ones(5, 4),
            torch.zeros(5, 4),
            torch.zeros(5, 4),
        )
        torch.testing.assert_close(param, torch.full((5, 4), -0.1))


def test_misuse_is_refused() -> None:
    op = module("adam", "torch")
    four = [torch.zeros(3) for _ in range(4)]
    with pytest.raises(NpuPluginsError, match="#99 was never created"):
        op.adam_update(99, 1, 0.1, 0.9, 0.999, 1e-8, 0.0, True, *four)
    op.create_adam(1, 0.1, 0.9, 0.999, 1e-8, 0.0, True, False)
    with pytest.raises(ValueError, match="tensors of one size"):
        op.adam_update(1, 1, 0.1, 0.9, 0.999, 1e-8, 0.0, True, *four[:3], torch.zeros(4))
    with pytest.raises(NpuPluginsError, match="fp32 steps only"):
        op.adam_rollback(1, 1, 0.1, 0.9, 0.999, 1e-8, 0.0, True, four[0].half(), *four[1:])
    with pytest.raises(NpuPluginsError, match="ZenFlow.*g\\+\\+"):
        op.zenflow_adam_create(0, [])
