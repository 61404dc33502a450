"""Ops that are Python over torch and torch_npu.

FusedAdam is ours, FusedLamb mends DeepSpeed's. The others are DeepSpeed's own NPU kernels behind builders
that do without CANN's path: DeepSpeed's raise KeyError where ASCEND_HOME_PATH is unset, though these have
nothing to compile.
"""

from __future__ import annotations

import importlib
from typing import Any

from npu_plugins.accelerator.kernels.fused_adam import NpuFusedAdam
from npu_plugins.accelerator.kernels.fused_lamb import NpuFusedLamb
from npu_plugins.accelerator.op_builders import builder


class FusedAdamBuilder(builder.PythonOp):
    """Adam and AdamW through torch_npu's fused kernel."""

    BUILD_VAR = "DS_BUILD_FUSED_ADAM"
    NAME = "fused_adam"

    def load(self, verbose: bool = True) -> type[NpuFusedAdam]:
        """The class with `multi_tensor_adam`."""
        return NpuFusedAdam


class DeepSpeedKernel(builder.PythonOp):
    """A kernel of DeepSpeed's own; `KERNEL` is `module:class` below `deepspeed.ops.op_builder.npu`."""

    KERNEL: str

    def load(self, verbose: bool = True) -> Any:
        """DeepSpeed's kernel class."""
        module, name = self.KERNEL.split(":")
        return getattr(importlib.import_module(f"deepspeed.ops.op_builder.npu.{module}"), name)


class FusedLambBuilder(builder.PythonOp):
    """LAMB on the NPU."""

    BUILD_VAR = "DS_BUILD_FUSED_LAMB"
    NAME = "fused_lamb"

    def load(self, verbose: bool = True) -> type[NpuFusedLamb]:
        """The class with `lamb`."""
        return NpuFusedLamb


class FusedLionBuilder(DeepSpeedKernel):
    """Lion on the NPU."""

    BUILD_VAR = "DS_BUILD_FUSED_LION"
    NAME = "fused_lion"
    KERNEL = "fused_lion:NPUFusedLion"


class InferenceBuilder(DeepSpeedKernel):
    """Transformer inference kernels."""

    BUILD_VAR = "DS_BUILD_TRANSFORMER_INFERENCE"
    NAME = "transformer_inference"
    KERNEL = "inference:NPUInference"


class QuantizerBuilder(DeepSpeedKernel):
    """Block quantization for ZeRO++."""

    BUILD_VAR = "DS_BUILD_QUANTIZER"
    NAME = "quantizer"
    KERNEL = "quantizer:NPUQuantizer"
