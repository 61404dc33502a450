"""Are these ranks ready: before a model is built, all ranks meet, are compared, and communicate."""

from npu_plugins.diagnostics.preflight.board import StoreLostError, open_store
from npu_plugins.diagnostics.preflight.compare import Fact, facts_of
from npu_plugins.diagnostics.preflight.facts import (
    device_facts,
    environment_facts,
    random_facts,
    version_facts,
)
from npu_plugins.diagnostics.preflight.report import Finding, PreflightError, Report
from npu_plugins.diagnostics.preflight.run import Preflight, Settings, tell_on_stderr

__all__ = [
    "Fact",
    "Finding",
    "Preflight",
    "PreflightError",
    "Report",
    "Settings",
    "StoreLostError",
    "device_facts",
    "environment_facts",
    "facts_of",
    "open_store",
    "random_facts",
    "tell_on_stderr",
    "version_facts",
]
