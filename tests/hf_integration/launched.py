"""What ranks do that ``accelerate launch`` starts: runs of the training program, then plain loops, in turn.

As a program, ``launched.py FILE``: FILE names the runs' arguments, and the loops' options with a file for the
losses of each.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def work(given: dict[str, Any]) -> None:
    """Do all runs and loops."""
    from accelerate.state import AcceleratorState
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    from hf_integration.train import import_job
    from tests.hf_integration.test_npu_accelerator import Loop, train

    run, _ = import_job()
    for arguments in given["first"]:
        run(arguments)
        unset_hf_deepspeed_config()
        AcceleratorState._reset_state(reset_partial_state=True)
    for file, options in given["loops"].items():
        result = train(Loop(replicas=options.pop("replicas"), options=options, clip=1.0, constant=True))
        Path(file).write_text(json.dumps(result), encoding="utf-8")  # the same on all ranks
        unset_hf_deepspeed_config()
    for arguments in given["last"]:
        run(arguments)


def work_at(port: int, given: dict[str, Any]) -> None:
    """Do all runs and loops on a rank of the pool."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    work(given)


def main() -> None:
    """Do all runs and loops of the file named on the command line."""
    from hf_integration.train import import_job

    _, leave_process_group = import_job()
    work(json.loads(Path(sys.argv[-1]).read_text(encoding="utf-8")))
    leave_process_group()


if __name__ == "__main__":
    main()
