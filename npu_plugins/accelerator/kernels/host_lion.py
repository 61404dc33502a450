"""Lion on the host in torch, with the interface of DeepSpeed's compiled `cpu_lion`."""

from __future__ import annotations

import torch

from npu_plugins.accelerator.kernels.tiles import in_fp32, tiles, write_back


class HostLion:
    """What `DeepSpeedCPULion` calls. Arithmetic is fp32 whatever the dtypes."""

    def create_lion(
        self, optimizer_id: int, lr: float, beta1: float, beta2: float, weight_decay: float, should_log: bool
    ) -> int:
        """Announce an optimizer; it has no state, for each update brings all hyperparameters."""
        if should_log:
            print(
                f"Lion #{optimizer_id} runs as torch operations: lr={lr}, betas=({beta1}, {beta2}), "
                f"weight_decay={weight_decay}"
            )
        return 0

    def destroy_lion(self, optimizer_id: int) -> int:
        """Nothing to free: see `create_lion`."""
        return 0

    @torch.no_grad()
    def lion_update(
        self,
        optimizer_id: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        weight_decay: float,
        params: torch.Tensor,
        grads: torch.Tensor,
        exp_avg: torch.Tensor,
    ) -> int:
        """Update `params` and `exp_avg` in place: a step of size `lr` along the sign of the mixed momentum.

        A mixed momentum of +0 counts as positive, as in the compiled kernel.
        """
        for param, grad, mean in tiles(params, grads, exp_avg):
            p, g, m = in_fp32(param), in_fp32(grad), in_fp32(mean)
            direction = m.mul(beta1).add_(g, alpha=1.0 - beta1)
            if weight_decay:
                p.mul_(1.0 - lr * weight_decay)
            p.sub_(torch.copysign(torch.full_like(direction, lr), direction))
            m.mul_(beta2).add_(g, alpha=1.0 - beta2)
            write_back(param, p)
            write_back(mean, m)
        return 0
