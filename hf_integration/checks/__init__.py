"""Checks of a running training: `--check_gradients`, `--check_memory`, `--find_nonfinite`."""

from hf_integration.checks.arguments import CheckArguments
from hf_integration.checks.callbacks import CheckGradients, CheckMemory, FindNonFinite
from hf_integration.checks.reduced_gradients import ReducedGradients

__all__ = ["CheckArguments", "CheckGradients", "CheckMemory", "FindNonFinite", "ReducedGradients"]
