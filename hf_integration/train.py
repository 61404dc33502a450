"""Train a causal language model with the HF Trainer and, with ``--deepspeed FILE``, DeepSpeed.

Start it with the ``deepspeed`` launcher or ``torchrun`` (``hf_integration/train.py``), or alone with
``python -m hf_integration.train``. ``--help`` lists every flag.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence

from hf_integration.errors import TrainingInputError
from hf_integration.host_only import keep_to_the_host, wants_host_only


def import_job() -> tuple[Callable[[Sequence[str]], None], Callable[[], None]]:
    """Return the run and what every rank does after it; not imported above: keep_to_the_host() comes first.

    The garbage collector rests meanwhile, and leaves out what was imported from then on: it would walk again
    and again over torch and transformers, which stay to the end, for a tenth of the time of the imports.
    """
    if "hf_integration.job" not in sys.modules:
        collected = gc.isenabled()
        gc.disable()
        try:
            import hf_integration.job  # noqa: F401
        finally:
            if collected:
                gc.enable()
        gc.freeze()
    from hf_integration.job import leave_process_group, run

    return run, leave_process_group


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program with ``argv`` (default: the command line) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if wants_host_only(arguments):
        keep_to_the_host()
    run, leave_process_group = import_job()
    from npu_plugins.checkpoint import CheckpointError
    from npu_plugins.diagnostics import DiagnosticsError

    status = 0
    try:
        run(arguments)
    except (TrainingInputError, CheckpointError, DiagnosticsError) as error:
        # Every local rank refuses, could not save, or ends for the same reason, so one of them says it.
        if int(os.environ.get("LOCAL_RANK", 0)) == 0:
            print(f"train.py: {error}", file=sys.stderr, flush=True)
        status = 2 if isinstance(error, TrainingInputError) else 1
    # Not after any other exception: a collective may be pending then, and tearing down would wait for it.
    leave_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
