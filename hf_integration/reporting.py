"""Whether the programs that `report_to` names can be reported to."""

from __future__ import annotations

from collections.abc import Sequence

from transformers.integrations import (
    get_available_reporting_integrations,
    get_reporting_integration_callbacks,
)

from hf_integration.errors import TrainingInputError

NOT_LISTED = ("flyte",)
"""What transformers 5.24 can report to but does not look for."""


def check_reports(names: Sequence[str]) -> None:
    """Refuse names that the Trainer could do nothing with, before it has built anything.

    Args:
        names: of programs, as `TrainingArguments.report_to` has them.

    Raises:
        TrainingInputError: a program is unknown, or its package is not installed.
    """
    try:
        get_reporting_integration_callbacks(list(names))
    except ValueError as error:
        raise TrainingInputError(f"--report_to {' '.join(names)}: {error}") from error
    there = get_available_reporting_integrations()
    for name in names:
        if name not in (*there, *NOT_LISTED):
            raise TrainingInputError(
                f"--report_to {name} needs a package that is not installed; `pip install {name}`, or leave "
                f"it out (installed here: {', '.join(there) or 'none'})"
            )
