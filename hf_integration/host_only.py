"""Keep a run on the CPU, or a dry one, away from torch_npu, which transformers would import all the same.

Must be asked before torch or transformers are imported, so this module imports neither.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence


def wants_host_only(argv: Sequence[str]) -> bool:
    """Return whether ``argv`` holds a true ``--use_cpu`` or ``--dry_run``, as HfArgumentParser reads them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--use_cpu", "--dry_run"):
        parser.add_argument(flag, nargs="?", const="true", default="false")
    given = vars(parser.parse_known_args(list(argv))[0]).values()
    return any(value.lower() in ("true", "yes", "y", "t", "1") for value in given)


def keep_to_the_host() -> None:
    """Make torch, transformers and DeepSpeed treat torch_npu as not installed, in this process only.

    transformers 5.24 imports torch_npu wherever it is installed (``is_torch_npu_available``), which fails on
    a machine without CANN although a CPU run needs nothing of it. Does nothing once torch_npu is imported.
    """
    if "torch_npu" in sys.modules:
        return
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    os.environ["DS_ACCELERATOR"] = "cpu"
    # The import system's own way to say "not found" (importlib.util.find_spec returns None for it).
    sys.modules["torch_npu"] = None  # type: ignore[assignment]
