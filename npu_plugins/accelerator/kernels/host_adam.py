"""Adam and AdamW on the host in torch, with the interface of DeepSpeed's compiled `cpu_adam`."""

from __future__ import annotations

import math
from typing import NoReturn

import torch

from npu_plugins.accelerator.kernels.tiles import in_fp32, tiles, write_back
from npu_plugins.errors import NpuPluginsError


class HostAdam:
    """What `DeepSpeedCPUAdam` calls: create, update, roll back, destroy.

    Arithmetic is fp32 whatever the dtypes of parameters and states, as in the compiled kernel.
    An optimizer is known by the integer that `DeepSpeedCPUAdam` gives it.
    """

    def __init__(self) -> None:
        self._decoupled: dict[int, bool] = {}

    def create_adam(
        self,
        optimizer_id: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        adamw_mode: bool,
        should_log: bool,
    ) -> int:
        """Register an optimizer; every hyperparameter but `adamw_mode` comes again with each update."""
        self._decoupled[optimizer_id] = adamw_mode
        if should_log:
            mode = "AdamW" if adamw_mode else "Adam"
            print(
                f"{mode} #{optimizer_id} runs as torch operations: lr={lr}, betas=({beta1}, {beta2}), "
                f"eps={eps}, weight_decay={weight_decay}"
            )
        return 0

    def destroy_adam(self, optimizer_id: int) -> int:
        """Forget an optimizer; unknown ones are no error, as in the compiled kernel."""
        self._decoupled.pop(optimizer_id, None)
        return 0

    @torch.no_grad()
    def adam_update(
        self,
        optimizer_id: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        bias_correction: bool,
        params: torch.Tensor,
        grads: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> int:
        """Update `params`, `exp_avg` and `exp_avg_sq` in place; `step` counts from 1."""
        decoupled = self._mode(optimizer_id)
        correction1 = 1.0 - beta1**step if bias_correction else 1.0
        correction2 = math.sqrt(1.0 - beta2**step) if bias_correction else 1.0
        for param, grad, mean, square in tiles(params, grads, exp_avg, exp_avg_sq):
            p, g, m, v = in_fp32(param), in_fp32(grad), in_fp32(mean), in_fp32(square)
            if weight_decay and not decoupled:
                g = g.add(p, alpha=weight_decay)
            m.mul_(beta1).add_(g, alpha=1.0 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
            if weight_decay and decoupled:
                p.mul_(1.0 - lr * weight_decay)
            p.addcdiv_(m, v.sqrt().div_(correction2).add_(eps), value=-lr / correction1)
            write_back(param, p)
            write_back(mean, m)
            write_back(square, v)
        return 0

    @torch.no_grad()
    def adam_rollback(
        self,
        optimizer_id: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        bias_correction: bool,
        params: torch.Tensor,
        grads: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> int:
        """Undo the update that `step` made with these very gradients (fp32 tensors, AdamW only)."""
        tensors = (params, grads, exp_avg, exp_avg_sq)
        if any(tensor.dtype is not torch.float32 for tensor in tensors):
            raise NpuPluginsError(f"adam_rollback undoes fp32 steps only, not {[t.dtype for t in tensors]}.")
        if not self._mode(optimizer_id):
            raise NpuPluginsError(
                "adam_rollback undoes AdamW steps only; this optimizer has adamw_mode=False"
            )
        correction1 = 1.0 - beta1**step if bias_correction else 1.0
        correction2 = math.sqrt(1.0 - beta2**step) if bias_correction else 1.0
        for p, g, m, v in tiles(*tensors):
            p.addcdiv_(m, v.sqrt().div_(correction2).add_(eps), value=lr / correction1)
            p.div_(1.0 - lr * weight_decay)
            m.sub_(g, alpha=1.0 - beta1).div_(beta1)
            v.addcmul_(g, g, value=beta2 - 1.0).div_(beta2)
        return 0

    def _mode(self, optimizer_id: int) -> bool:
        if optimizer_id not in self._decoupled:
            raise NpuPluginsError(f"Adam optimizer #{optimizer_id} was never created, or is destroyed.")
        return self._decoupled[optimizer_id]

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("zenflow_"):
            raise NpuPluginsError(
                f"cpu_adam.{name} (ZenFlow) exists only compiled: install g++ and ninja, "
                "or drop 'zenflow' from the ds_config."
            )
        raise AttributeError(f"cpu_adam has no function {name!r}")
