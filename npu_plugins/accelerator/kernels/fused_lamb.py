"""LAMB on the NPU: DeepSpeed's own kernel, made to work in half precision.

DeepSpeed 0.19.8 (ops/op_builder/npu/fused_lamb.py) writes the half-precision copy of a parameter, a leaf that
requires a gradient, outside of `torch.no_grad`: its `FusedLamb` raises in the first step of a bf16 or fp16
run.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch


class NpuFusedLamb:
    """What `deepspeed.ops.lamb.FusedLamb` calls."""

    @staticmethod
    @torch.no_grad()
    def lamb(*args: Any) -> torch.Tensor:
        """One parameter's step, with the arguments of DeepSpeed's kernel; returns the trust ratio, a scalar.

        Source of the rule: You et al. 2019 (arXiv 1904.00962), algorithm 2.
        """
        kernel = importlib.import_module("deepspeed.ops.op_builder.npu.fused_lamb").NPUFusedLamb
        return kernel.lamb(*args)
