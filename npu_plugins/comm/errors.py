"""What this package raises."""

from __future__ import annotations

from npu_plugins.errors import NpuPluginsError


class CommError(NpuPluginsError):
    """Ranks, groups or batches are not what a mesh needs: one sentence with the values seen and the mend."""
