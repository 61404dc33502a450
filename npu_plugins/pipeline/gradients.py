"""Where DeepSpeed's optimizers expect the gradients of several backward passes."""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.runtime.base_optimizer import ZeROOptimizer

from npu_plugins.comm import clip_grad_norm_


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


def complete_gradients(engine: Any) -> bool:
    """Make the gradients what a reduction over one replica would, if that is all there is to do.

    DeepSpeed copies all gradients into a bucket and back for it, which takes as long as the optimizer's step.

    Returns:
        Whether they are complete. False: there are several replicas, or the optimizer has buffers of its own,
        and DeepSpeed has to reduce.
    """
    own_buffers = engine.zero_optimization() or engine.using_bf16_optimizer or engine.has_moe_layers
    if own_buffers or engine.mesh.size("dp") > 1:
        return False
    for parameter in engine.module.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)  # as on several replicas, for weight decay
    return True


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


def scale_loss(engine: Any, loss: torch.Tensor) -> torch.Tensor:
    """Return the loss as the optimizer expects its backward to start: scaled, where it unscales gradients.

    DeepSpeed 0.19.8's own engine forgets to do so for fp16 without ZeRO, whose optimizers divide by the scale
    all the same (runtime/engine.py:3434 asks for a ZeROOptimizer).
    """
    optimizer = engine.optimizer
    if isinstance(optimizer, ZeROOptimizer):
        return optimizer.scale_if_loss(loss)
    if engine.torch_autocast_z0_gradscaler:
        return engine.torch_autocast_z0_gradscaler.scale(loss)
    return loss.float() * optimizer.loss_scale if engine.fp16_enabled() else loss


def own_clipping(engine: Any) -> None:
    """Take clipping away from the fp16 optimizers without ZeRO, which count tied weights on every stage."""
    if engine.fp16_enabled() and not isinstance(engine.optimizer, ZeROOptimizer):
        engine.optimizer.clip_grad = 0.0


def clip_scaled_gradients(engine: Any) -> torch.Tensor | None:
    """Clip gradients that still carry the loss scale, where `own_clipping` took that over.

    Returns:
        The norm without the scale, or None where DeepSpeed clips. An overflow stays one: 0 × inf is nan.
    """
    if not engine.fp16_enabled() or isinstance(engine.optimizer, ZeROOptimizer):
        return None
    scale = engine.optimizer.loss_scale
    limit = engine.gradient_clipping() * scale or float("inf")
    return clip_grad_norm_(engine.module.parameters(), limit, engine.mesh) / scale


def restart_step_counts(engine: Any) -> None:
    """Let Adam's first step be its first, under the fp16 optimizers without ZeRO.

    Those of DeepSpeed 0.19.8 allocate its state by a step of zeros, which Adam counts: its first update would
    come out a quarter too small. Valid before any update only.
    """
    optimizer = engine.optimizer
    if not engine.fp16_enabled() or isinstance(optimizer, ZeROOptimizer):
        return
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    for holder in [*optimizer.state.values(), *optimizer.param_groups]:
        if "step" in holder:
            count = holder["step"]
            holder["step"] = torch.zeros_like(count) if isinstance(count, torch.Tensor) else 0
