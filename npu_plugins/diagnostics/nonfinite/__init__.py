"""Which module, on which rank, made the first nan or infinity of a step."""

from npu_plugins.diagnostics.nonfinite.finder import NonFiniteFinder, gather_events
from npu_plugins.diagnostics.nonfinite.judge import Event, Finding, NonFiniteError, first_bad

__all__ = ["Event", "Finding", "NonFiniteError", "NonFiniteFinder", "first_bad", "gather_events"]
