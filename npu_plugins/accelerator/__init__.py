"""The DeepSpeed accelerator for Ascend NPUs.

`NpuAccelerator` is imported on first use: the hooks of `npu_plugins.autoload` touch this package in every
process, and DeepSpeed and torch are slow to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npu_plugins.accelerator.npu_accelerator import NpuAccelerator

__all__ = ["NpuAccelerator"]


def __getattr__(name: str) -> Any:
    if name == "NpuAccelerator":
        from npu_plugins.accelerator.npu_accelerator import NpuAccelerator

        return NpuAccelerator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
