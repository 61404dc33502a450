"""Adagrad on the host in torch, with the interface of DeepSpeed's compiled `cpu_adagrad`."""

from __future__ import annotations

import torch

from npu_plugins.accelerator.kernels.tiles import in_fp32, tiles, write_back


class HostAdagrad:
    """What `DeepSpeedCPUAdagrad` calls. Arithmetic is fp32 whatever the dtypes.

    The compiled kernel also overwrites the gradients with the applied update, which nothing reads;
    this one leaves them alone.
    """

    def create_adagrad(
        self, optimizer_id: int, lr: float, eps: float, weight_decay: float, should_log: bool
    ) -> int:
        """Announce an optimizer; it has no state, for each update brings all hyperparameters."""
        if should_log:
            print(
                f"Adagrad #{optimizer_id} runs as torch operations: lr={lr}, eps={eps}, "
                f"weight_decay={weight_decay}"
            )
        return 0

    def destroy_adagrad(self, optimizer_id: int) -> int:
        """Nothing to free: see `create_adagrad`."""
        return 0

    @torch.no_grad()
    def adagrad_update(
        self,
        optimizer_id: int,
        step: int,
        lr: float,
        eps: float,
        weight_decay: float,
        params: torch.Tensor,
        grads: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> int:
        """Update `params` and `exp_avg_sq` (the running sum of squares) in place."""
        for param, grad, square in tiles(params, grads, exp_avg_sq):
            p, g, v = in_fp32(param), in_fp32(grad), in_fp32(square)
            if weight_decay:
                g = g.add(p, alpha=weight_decay)
            v.addcmul_(g, g)
            p.addcdiv_(g, v.sqrt().add_(eps), value=-lr)
            write_back(param, p)
            write_back(square, v)
        return 0
