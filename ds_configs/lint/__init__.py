"""Finds what is wrong with a ds_config file, where, why, what comes of it, and how to mend it."""

from ds_configs.lint.context import Options
from ds_configs.lint.finding import SEVERITIES, Code, Finding, codes
from ds_configs.lint.fix import Fixed, fix_document
from ds_configs.lint.run import Report, lint_document, lint_path, lint_text

__all__ = [
    "SEVERITIES",
    "Code",
    "Finding",
    "Fixed",
    "Options",
    "Report",
    "codes",
    "fix_document",
    "lint_document",
    "lint_path",
    "lint_text",
]
