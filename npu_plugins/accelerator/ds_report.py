"""Let DeepSpeed's `ds_report` run without CANN.

Reason: `deepspeed.env_report.installed_cann_path` (0.19.8) says `or` where it means `and`, so it raises
KeyError('ASCEND_HOME_PATH') exactly when CANN is not set up, which is what `ds_report` should tell.
The function is looked up in its module when called, so replacing it there suffices.
"""

from __future__ import annotations

import os
from typing import Any


def installed_cann_path() -> str | None:
    """The directory of CANN, or None where CANN is not set up."""
    path = os.environ.get("ASCEND_HOME_PATH", "")
    return path if os.path.isdir(path) else None


def mend(env_report: Any) -> None:
    """Replace the faulty function in the module `deepspeed.env_report`."""
    env_report.installed_cann_path = installed_cann_path
