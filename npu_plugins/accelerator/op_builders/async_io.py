"""Asynchronous file I/O for offload to NVMe."""

from __future__ import annotations

from typing import Any

from npu_plugins.accelerator.op_builders import builder, pin_memory
from npu_plugins.errors import NpuPluginsError

LIBAIO_HINT = (
    "async_io, which offload to NVMe needs, wants libaio's header and library: install libaio-dev (Debian) "
    "or libaio-devel (Red Hat), point CFLAGS and LDFLAGS at them, or offload to 'cpu' instead."
)

BINDING = "csrc/aio/py_lib/py_ds_aio.cpp"
LIBRARY = (
    "csrc/aio/common/deepspeed_aio_common.cpp",
    "csrc/aio/common/deepspeed_aio_types.cpp",
    "csrc/aio/common/deepspeed_aio_utils.cpp",
    "csrc/aio/py_lib/deepspeed_aio_op_desc.cpp",
    "csrc/aio/py_lib/deepspeed_aio_thread.cpp",
    "csrc/aio/py_lib/deepspeed_cpu_op.cpp",
    "csrc/aio/py_lib/deepspeed_pin_tensor_client.cpp",
    "csrc/aio/py_lib/deepspeed_py_aio.cpp",
    "csrc/aio/py_lib/deepspeed_py_aio_handle.cpp",
    "csrc/aio/py_lib/deepspeed_py_copy.cpp",
    "csrc/aio/py_lib/deepspeed_py_io_handle.cpp",
)


class AsyncIOBuilder(builder.HostOp):
    """DeepSpeed's aio over libaio."""

    BUILD_VAR = "DS_BUILD_AIO"
    NAME = "async_io"
    APART = LIBRARY  # their constants collide, and not all of their headers can be included twice

    def sources(self) -> list[str]:
        """C++ files, relative to DeepSpeed's package of ops."""
        return [BINDING, *LIBRARY]

    def include_paths(self) -> list[str]:
        """Directories of headers."""
        return ["csrc/aio/py_lib", "csrc/aio/common", "csrc/pin_memory"]

    def cxx_args(self) -> list[str]:
        """Flags for a fast compilation: the disk sets the pace of this op, not the processor."""
        return ["-O0" if flag == "-O3" else flag for flag in super().cxx_args()]

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
