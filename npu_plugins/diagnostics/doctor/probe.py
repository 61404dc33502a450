"""What the doctor lets another process do, since it may end that process: import torch_npu, ask for the NPUs.

`python -m npu_plugins.diagnostics.doctor.probe npus` prints one line of JSON; with `simulator` it ends with
status 1 where the simulator is not built.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main(wanted: str) -> int:
    """Do what is wanted; returns the exit status."""
    return _simulator() if wanted == "simulator" else _npus()


def _simulator() -> int:
    from npu_plugins.errors import SimulatorError
    from npu_plugins.simulator.build import find_built

    try:
        return 0 if find_built() else 1
    except SimulatorError as failure:
        print(failure, file=sys.stderr)
        return 1


def _npus() -> int:
    from npu_plugins.errors import NpuPluginsError
    from npu_plugins.simulator.settings import simulator_requested

    answer: dict[str, Any]
    answer = {"error": "", "torch": "", "torch_npu": "", "count": 0, "memory": [], "timeouts": []}
    try:
        import torch
        import torch_npu

        answer.update(torch=torch.__version__, torch_npu=torch_npu.__version__)
        npu = torch.npu  # torch_npu adds it
        answer["count"] = npu.device_count()
        if simulator_requested():  # npu-smi tells it of real ones, without opening them
            answer["memory"] = [npu.mem_get_info(number) for number in range(answer["count"])]
    except (ImportError, OSError, RuntimeError) as failure:
        kind = "" if isinstance(failure, NpuPluginsError) else f"{type(failure).__name__}: "
        answer["error"] = " ".join(f"{kind}{failure}".split())[:600]
    else:
        answer["timeouts"] = _timeouts()
    print(json.dumps(answer))
    return 0


def _timeouts() -> list[str]:
    from npu_plugins.comm.errors import CommError
    from npu_plugins.comm.timeouts import apply_setting

    try:
        return apply_setting(dict(os.environ))
    except CommError as failure:
        return [str(failure)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "npus"))
