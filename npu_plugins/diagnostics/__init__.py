"""What is wrong with this machine, this job, this rank: found, named, and told with its mend."""

from npu_plugins.diagnostics.errors import DiagnosticsError

__all__ = ["DiagnosticsError"]
