"""DeepSpeed's page-locked host allocator, which needs no accelerator."""

from __future__ import annotations

from typing import Any

from deepspeed.ops.op_builder import pin_memory_load

from npu_plugins.accelerator.op_builders import builder


class PinMemoryBuilder(builder.HostOp):
    """Host memory that stays in place, for DMA and asynchronous I/O."""

    BUILD_VAR = "DS_BUILD_PIN_MEMORY"
    NAME = "pin_memory"

    def sources(self) -> list[str]:
        """C++ files, relative to DeepSpeed's package of ops."""
        return [
            "csrc/pin_memory/page_alloc.cpp",
            "csrc/pin_memory/deepspeed_pin_tensor.cpp",
            "csrc/pin_memory/py_ds_pin_memory.cpp",
        ]

    def include_paths(self) -> list[str]:
        """Directories of headers."""
        return ["csrc/pin_memory"]

    def load(self, verbose: bool = False) -> Any:
        """The module, loaded once a process with its symbols visible to async_io."""
        return pin_memory_load.load_pin_memory_module(self, verbose=verbose)
