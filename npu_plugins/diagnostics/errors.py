"""What this package raises."""

from __future__ import annotations

from npu_plugins.errors import NpuPluginsError


class DiagnosticsError(NpuPluginsError):
    """A check cannot be made as asked, or found a fault: one sentence with the values seen and the mend."""
