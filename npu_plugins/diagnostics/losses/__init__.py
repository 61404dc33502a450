"""Losses of runs: read from what runs leave behind, compared with each other, looked at by themselves."""

from npu_plugins.diagnostics.losses.compare import TOLERANCES, Comparison, compare_losses
from npu_plugins.diagnostics.losses.concerns import concerns_of
from npu_plugins.diagnostics.losses.read import Curve, read_curve

__all__ = ["TOLERANCES", "Comparison", "Curve", "compare_losses", "concerns_of", "read_curve"]
