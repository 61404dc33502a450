"""Adam and AdamW on the NPU through torch_npu's fused kernel, for DeepSpeed's `FusedAdam`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# A step so late that beta**step is 0, which makes the bias correction 1.
STEP_WITHOUT_CORRECTION = 1.0e9


class NpuFusedAdam:
    """The object whose `multi_tensor_adam` DeepSpeed's `FusedAdam` calls.

    It calls `torch._fused_adamw_`, for which torch_npu has an aclnn kernel. `torch_npu.npu_apply_adam_w`
    would run through the older operator compiler, and turns its hyperparameters into the parameter's dtype:
    beta2 = 0.999 is 1.0 in bf16.
    """

    @staticmethod
    @torch.no_grad()
    def multi_tensor_adam(
        chunk_size: int,
        noop_flag: torch.Tensor,
        tensor_lists: Sequence[Sequence[torch.Tensor]],
        lr: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        step: int,
        adam_w_mode: bool,
        bias_correction: bool,
        weight_decay: float,
    ) -> None:
        """Update parameters and states in place; `tensor_lists` is gradients, parameters, means, squares.

        step: counts from 1.
        adam_w_mode: decoupled weight decay if true, L2 added to the gradient if false.
        chunk_size and noop_flag belong to the CUDA launcher's signature; the CUDA Adam kernel lets infinities
        through whatever the flag says, and so does this one.
        """
        grads, params, means, squares = (list(tensors) for tensors in tensor_lists)
        if weight_decay and not adam_w_mode:
            grads = [grad.add(param, alpha=weight_decay) for grad, param in zip(grads, params, strict=True)]
        # Filled on the device: a step copied from the host would stall the stream.
        count = float(step) if bias_correction else STEP_WITHOUT_CORRECTION
        steps = [torch.full((), count, dtype=torch.float32, device=params[0].device)] * len(params)
        torch._fused_adamw_(
            params,
            grads,
            means,
            squares,
            [],
            steps,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=weight_decay if adam_w_mode else 0.0,
            eps=epsilon,
            amsgrad=False,
            maximize=False,
        )
