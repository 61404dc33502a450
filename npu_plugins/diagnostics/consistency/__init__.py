"""Whether ranks that must hold the same tensors do: gradients and parameters, bit by bit."""

from npu_plugins.diagnostics.consistency.check import (
    InconsistentRanksError,
    check_gradients,
    check_parameters,
    raise_together,
)
from npu_plugins.diagnostics.consistency.checksums import checksum
from npu_plugins.diagnostics.consistency.compare import Copies, compare
from npu_plugins.diagnostics.consistency.difference import Difference, Outcome

__all__ = [
    "Copies",
    "Difference",
    "InconsistentRanksError",
    "Outcome",
    "check_gradients",
    "check_parameters",
    "checksum",
    "compare",
    "raise_together",
]
