"""The exception of this package."""

from __future__ import annotations

from npu_plugins.errors import NpuPluginsError


class TensorParallelError(NpuPluginsError):
    """A layer, a loss or a group of the tensor-parallel axis cannot be used as asked."""
