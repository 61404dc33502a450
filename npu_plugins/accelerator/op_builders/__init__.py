"""The ops that DeepSpeed finds on an NPU, by the names of its builders."""

from npu_plugins.accelerator.op_builders.absent import NotImplementedBuilder
from npu_plugins.accelerator.op_builders.async_io import AsyncIOBuilder
from npu_plugins.accelerator.op_builders.host_optimizers import (
    CPUAdagradBuilder,
    CPUAdamBuilder,
    CPULionBuilder,
)
from npu_plugins.accelerator.op_builders.pin_memory import PinMemoryBuilder
from npu_plugins.accelerator.op_builders.python_ops import (
    FusedAdamBuilder,
    FusedLambBuilder,
    FusedLionBuilder,
    InferenceBuilder,
    QuantizerBuilder,
)

__all__ = [
    "AsyncIOBuilder",
    "CPUAdagradBuilder",
    "CPUAdamBuilder",
    "CPULionBuilder",
    "FusedAdamBuilder",
    "FusedLambBuilder",
    "FusedLionBuilder",
    "InferenceBuilder",
    "NotImplementedBuilder",
    "PinMemoryBuilder",
    "QuantizerBuilder",
]
