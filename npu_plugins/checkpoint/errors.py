"""What the checkpoint package raises."""

from npu_plugins.errors import NpuPluginsError


class CheckpointError(NpuPluginsError):
    """A checkpoint cannot be read into, or written from, a sharded model as asked."""
