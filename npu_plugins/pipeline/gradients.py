"""Where DeepSpeed's optimizers expect the gradients of several backward passes."""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.runtime.base_optimizer import ZeROOptimizer


def fold_gradients(engine: Any) -> None:
    """Hand over what a backward pass, or a deferred weight gradient, has left in ``.grad``.

    BF16_Optimizer adds ``.grad`` to its fp32 buffers when it is told that a backward pass has ended, and so
    it must be told after every I, W and B; ``.grad`` is dropped then, or it would be added twice. ZeRO-1 with
    another accumulation dtype moves it by itself. The others let it stay.
    """
    optimizer = engine.optimizer
    if engine.using_bf16_optimizer:
        optimizer.update_hp_grads()
        for group in optimizer.bf16_groups:
            for parameter in group:
                parameter.grad = None
    elif isinstance(optimizer, ZeROOptimizer):
        optimizer.backward_epilogue()


def gradient_of(engine: Any, parameter: torch.Tensor) -> torch.Tensor:
    """Return the tensor in which the optimizer keeps a parameter's gradient; zeros where there was none."""
    optimizer = engine.optimizer
    if getattr(optimizer, "use_grad_accum_attribute", False):
        if parameter.grad_accum is None:
            parameter.grad_accum = torch.zeros_like(parameter, dtype=optimizer.gradient_accumulation_dtype)
        return parameter.grad_accum
    if engine.using_bf16_optimizer:
        if getattr(parameter, "_hp_grad", None) is None:
            parameter.grad = torch.zeros_like(parameter)
            fold_gradients(engine)
        return parameter._hp_grad
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
