"""The mends for DeepSpeed without ZeRO: Adam's first step, and the loss scale."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from hf_integration.deepspeed_stage0 import restart_step_counts, scale_gradients
from hf_integration.mesh_accelerator import MeshAccelerator


def adam() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """Return a parameter and an Adam for it."""
    parameter = torch.nn.Parameter(torch.ones(3))
    return parameter, torch.optim.Adam([parameter], lr=0.1)


def test_first_update_is_adams_own_after_a_step_on_zero_gradients() -> None:
    gradient = torch.tensor([1.0, -2.0, 0.5])
    fresh, fresh_optimizer = adam()
    warmed, warmed_optimizer = adam()
    warmed.grad = torch.zeros(3)
    warmed_optimizer.step()
    wrapped = SimpleNamespace(optimizer=SimpleNamespace(optimizer=warmed_optimizer))
    assert restart_step_counts(wrapped) == 1
    for parameter, optimizer in ((fresh, fresh_optimizer), (warmed, warmed_optimizer)):
        parameter.grad = gradient.clone()
        optimizer.step()
    assert torch.equal(fresh, warmed)


def test_counts_kept_in_groups_are_reset_too() -> None:
    _, optimizer = adam()
    optimizer.param_groups[0]["step"] = 1
    assert restart_step_counts(optimizer) == 1
    assert optimizer.param_groups[0]["step"] == 0
    assert restart_step_counts(optimizer) == 0


def loss_of(weight: torch.Tensor) -> torch.Tensor:
    """Return a scalar whose gradient with respect to ``weight`` is three."""
    return (3 * weight).sum()


def test_gradient_is_scaled_and_the_loss_is_not() -> None:
    weight = torch.ones(2, requires_grad=True)
    loss = loss_of(weight)
    scale = SimpleNamespace(use_grad_scaling=True, cur_scale=1024.0)
    scale_gradients(loss, SimpleNamespace(optimizer=SimpleNamespace(loss_scale_config=scale)))
    (loss / 2).backward()  # the engine divides by the accumulation steps
    assert loss.item() == 6
    assert weight.grad.tolist() == [1536, 1536]


def test_gradient_is_left_alone_elsewhere() -> None:
    no_scaling = SimpleNamespace(loss_scale_config=SimpleNamespace(use_grad_scaling=False, cur_scale=1024.0))
    for model in (
        torch.nn.Linear(1, 1),
        SimpleNamespace(optimizer=no_scaling),
        SimpleNamespace(optimizer=None),
    ):
        weight = torch.ones(2, requires_grad=True)
        loss = loss_of(weight)
        scale_gradients(loss, model)
        loss.backward()
        assert weight.grad.tolist() == [3, 3]


class Engine(SimpleNamespace):
    """An engine that goes back as DeepSpeed's does without ZeRO: it scales nothing."""

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Take note."""

    def backward(self, loss: torch.Tensor, scale_wrt_gas: bool) -> None:
        """Go back."""
        assert not scale_wrt_gas
        loss.backward()


def test_a_divided_model_s_backward_scales_whoever_trains_it() -> None:
    scale = SimpleNamespace(use_grad_scaling=True, cur_scale=1024.0)
    engine = Engine(optimizer=SimpleNamespace(loss_scale_config=scale))
    accelerator = SimpleNamespace(engine=engine, sync_gradients=False, _nothing=False)
    weight = torch.ones(2, requires_grad=True)
    MeshAccelerator.backward(accelerator, loss_of(weight))  # type: ignore[arg-type]
    assert weight.grad is not None
    assert weight.grad.tolist() == [3072, 3072]
    accelerator._nothing = True
    MeshAccelerator.backward(accelerator, loss_of(weight))  # type: ignore[arg-type]
    assert weight.grad.tolist() == [3072, 3072]
