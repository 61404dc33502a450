"""Asynchronous file I/O for offload to NVMe."""

from __future__ import annotations

from typing import Any

from npu_plugins.accelerator.op_builders import builder, pin_memory
from npu_plugins.errors import NpuPluginsError

LIBAIO_HINT = (
    "async_io, which offload to NVMe needs, wants libaio's header and library: install libaio-dev (Debian) "
    "or libaio-devel (Red Hat), point CFLAGS and LDFLAGS at them, or offload to 'cpu' instead."
)

COMMON = ("deepspeed_aio_utils", "deepspeed_aio_common", "deepspeed_aio_types")
BINDING = (
    "deepspeed_py_io_handle",
    "deepspeed_py_aio",
    "deepspeed_py_aio_handle",
    "deepspeed_aio_thread",
    "deepspeed_cpu_op",
    "deepspeed_aio_op_desc",
    "deepspeed_py_copy",
    "deepspeed_pin_tensor_client",
    "py_ds_aio",
)


class AsyncIOBuilder(builder.HostOp):
    """DeepSpeed's aio over libaio."""

    BUILD_VAR = "DS_BUILD_AIO"
    NAME = "async_io"
    # Each has a constant that another file has too.
    APART = ("csrc/aio/common/deepspeed_aio_types.cpp", "csrc/aio/py_lib/deepspeed_py_aio.cpp")

    def sources(self) -> list[str]:
        """C++ files, relative to DeepSpeed's package of ops."""
        return [
            *(f"csrc/aio/common/{name}.cpp" for name in COMMON),
            *(f"csrc/aio/py_lib/{name}.cpp" for name in BINDING),
        ]

    def include_paths(self) -> list[str]:
        """Directories of headers."""
        return ["csrc/aio/py_lib", "csrc/aio/common", "csrc/pin_memory"]

    def extra_ldflags(self) -> list[str]:
        """Linker flags."""
        return [*super().extra_ldflags(), "-laio"]

    def is_compatible(self, verbose: bool = False) -> bool:
        """True where a program that calls libaio links."""
        if not super().is_compatible(verbose):
            return False
        if self.has_function("io_pgetevents", ("aio",)):
            return True
        self.error_log = LIBAIO_HINT
        if verbose:
            self.warning(LIBAIO_HINT)
        return False

    def jit_load(self, verbose: bool = False) -> Any:
        """Compile and load, the page-locked allocator first, whose symbols this op uses."""
        if not self.is_compatible():
            raise NpuPluginsError(str(self.error_log))
        pin_memory.PinMemoryBuilder().load(verbose=verbose)
        return super().jit_load(verbose)
