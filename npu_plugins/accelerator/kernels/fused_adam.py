"""Adam and AdamW on the NPU through torch_npu's fused kernel, for DeepSpeed's `FusedAdam`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from npu_plugins.accelerator.kernels.tiles import in_fp32, write_back


class NpuFusedAdam:
    """The object whose `multi_tensor_adam` DeepSpeed's `FusedAdam` calls.

    Every update is one `torch_npu.npu_apply_adam_w`. That kernel converts its hyperparameters to the
    dtype of the parameter, and beta2 = 0.999 is 1.0 in bf16, so half-precision tensors are updated
    in fp32 and rounded back.
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
        chunk_size and noop_flag belong to the CUDA launcher's signature; the CUDA Adam kernel lets
        infinities through whatever the flag says, and so does this one.
        """
        # The kernel multiplies the powers by their beta once before use; 0 turns the correction off.
        beta1_power = beta1 ** (step - 1) if bias_correction else 0.0
        beta2_power = beta2 ** (step - 1) if bias_correction else 0.0
        decay = weight_decay if adam_w_mode else 0.0
        for grad, param, mean, square in zip(*tensor_lists, strict=True):
            p, g, m, v = in_fp32(param), in_fp32(grad), in_fp32(mean), in_fp32(square)
            if weight_decay and not adam_w_mode:
                g = g.add(p, alpha=weight_decay)
            torch.ops.npu.npu_apply_adam_w.out(
                beta1_power,
                beta2_power,
                lr,
                decay,
                beta1,
                beta2,
                epsilon,
                g,
                None,
                False,
                False,
                var=p,
                m=m,
                v=v,
            )
            write_back(param, p)
            write_back(mean, m)
            write_back(square, v)
