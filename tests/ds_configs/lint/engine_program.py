"""Says what deepspeed.initialize does on the CPU: a JSON list of configurations in, one of errors out."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from hf_integration.host_only import keep_to_the_host


def initialize(config: dict[str, Any]) -> str:
    """Build an engine around a small model; return the error, "" for none."""
    import deepspeed
    import torch

    model = torch.nn.Linear(4, 4)
    try:
        deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Answer once."""
    keep_to_the_host()
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="29513")
    answers, sys.stdout = sys.stdout, sys.stderr
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    import deepspeed

    # On the CPU DeepSpeed would compile its shared-memory collectives, for half a minute of both cores.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    print(json.dumps([initialize(config) for config in json.load(sys.stdin)]), file=answers)


if __name__ == "__main__":
    main()
