"""What happens around the imports of torch, torch_npu and DeepSpeed's choice of an accelerator.

Each hook is a generator function: what stands before its `yield` runs before the module, the rest after it.

Why hooks: DeepSpeed 0.19 has a closed list of accelerators, and `set_accelerator` after `import deepspeed`
comes too late, as op builders and timers are bound during that import. torch_npu 2.13 is linked to CANN, so
the simulated libraries must be in the process before it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # torch's switch: "0" keeps it from importing backends


def around_torch(module: ModuleType) -> Iterator[None]:
    """Let `import torch` bring the NPU, and give its groups the timeout that HCCL_TIMEOUT asks for.

    A launched rank keeps a ring of its last calls (torch reads its size at the first process group), and is
    watched: a program that knows nothing of this package has no other place to ask for that.
    """
    rank = _is_one_of_several()
    if rank:
        from npu_plugins.diagnostics.hang.recorder import apply_ring_setting

        apply_ring_setting(os.environ)
    yield from _npu_around_torch()
    if os.environ.get("HCCL_TIMEOUT"):
        _take_over_timeout(module)
    if rank:
        from npu_plugins.diagnostics.hang.watch import start_watch

        start_watch()


def around_deepspeed_comm(module: ModuleType) -> Iterator[None]:
    """Let `deepspeed.init_distributed` make our backend where the accelerator is ours.

    deepspeed/comm/comm.py (0.19.8, lines 880 and 910) looks its backend's class up by the name TorchBackend
    in its own module, and takes no other.
    """
    yield
    from deepspeed.accelerator import real_accelerator

    from npu_plugins.accelerator import NpuAccelerator

    if isinstance(real_accelerator.ds_accelerator, NpuAccelerator):
        from npu_plugins.comm.backend import HcclBackend

        setattr(module, "TorchBackend", HcclBackend)  # noqa: B010  # mypy knows no such attribute


def _is_one_of_several() -> bool:
    from npu_plugins.launchers import is_launcher

    size = os.environ.get("WORLD_SIZE", "1")
    return "RANK" in os.environ and size.isdigit() and int(size) > 1 and not is_launcher()


def _take_over_timeout(torch: ModuleType) -> None:
    """Set HCCL's and DeepSpeed's variables, and torch's own default, from HCCL_TIMEOUT.

    torch (2.13, distributed/constants.py) has a constant of half an hour and no setting for it; new groups
    read it from the module distributed_c10d, into which it is imported (line 849).
    """
    from npu_plugins.comm.timeouts import apply_setting, say_contradictions, setting, torch_timeout
    from npu_plugins.errors import show_as_one_sentence

    show_as_one_sentence()
    say_contradictions(apply_setting(os.environ), os.environ)
    seconds = setting(os.environ)
    if seconds is not None and torch.distributed.is_available():
        for holder in (torch.distributed.constants, torch.distributed.distributed_c10d):
            holder.default_pg_timeout = torch_timeout(seconds)


def _npu_around_torch() -> Iterator[None]:
    """Let `import torch` bring the NPU, fail plainly if the simulator cannot start, or go on without an NPU.

    torch 2.5 and newer import torch_npu on their own, and turn its failure into their own. With the simulator
    asked for, all that can fail is done before torch runs, where the error passes unchanged. With neither
    CANN nor the simulator, torch's switch is off for the time of its import.
    """
    from npu_plugins.availability import installed, why_no_cann
    from npu_plugins.simulator.settings import simulator_requested

    before = os.environ.get(_AUTOLOAD)
    if before not in (None, "1"):
        yield
        return
    if simulator_requested():
        _load_simulator()
        yield
        return
    without_npu = installed("torch_npu") and why_no_cann() is not None
    if without_npu:
        os.environ[_AUTOLOAD] = "0"
    try:
        yield
    finally:
        if without_npu:
            os.environ.pop(_AUTOLOAD)
            if before is not None:
                os.environ[_AUTOLOAD] = before


def around_torch_npu(module: ModuleType) -> Iterator[None]:
    """Load the simulated CANN before torch_npu and its kernels after, or say what a real one lacks.

    Afterwards garbage is collected on the device of the process, whichever thread collects it.

    While it is imported, what Python prints goes to stderr: torch_npu 2.13 prints "Warning: ASCEND_HOME_PATH
    environment variable is not set." to stdout (_init/registry/registry_manager.py, line 64), into the JSON
    of any command or script that imports it.
    """
    from npu_plugins.availability import check_pair, refuse_without_cann
    from npu_plugins.simulator.settings import simulator_requested

    if simulator_requested():
        _load_simulator()
        with contextlib.redirect_stdout(sys.stderr):
            yield
        from npu_plugins.simulator.loader import load_kernels

        load_kernels()
    else:
        refuse_without_cann()
        check_pair()
        with contextlib.redirect_stdout(sys.stderr):
            yield
    from npu_plugins.garbage import collect_on_device

    collect_on_device(module)
    if not _is_one_of_several():  # of several ranks, the report explains the codes, once for all
        from npu_plugins.diagnostics.codes.uncaught import explain_uncaught

        explain_uncaught()


def around_deepspeed_accelerator(module: ModuleType) -> Iterator[None]:
    """Give DeepSpeed our accelerator right after its module that chooses one has run."""
    yield
    from npu_plugins.availability import npu_for_deepspeed

    if npu_for_deepspeed():
        from npu_plugins.accelerator import NpuAccelerator

        setattr(module, "ds_accelerator", NpuAccelerator())  # noqa: B010  # mypy knows no such attribute


def around_deepspeed(module: ModuleType) -> Iterator[None]:
    """Let `deepspeed.initialize` make our pipeline engine for our `PipelineModule`."""
    yield
    from npu_plugins.pipeline.hook import install

    install(module)


def around_deepspeed_report(module: ModuleType) -> Iterator[None]:
    """Mend the function for which `ds_report` ends in a KeyError without CANN."""
    yield
    from npu_plugins.accelerator import ds_report

    ds_report.mend(module)


def _load_simulator() -> None:
    from npu_plugins.availability import check_pair, installed
    from npu_plugins.errors import show_as_one_sentence
    from npu_plugins.simulator.loader import load_cann

    show_as_one_sentence()
    if installed("torch_npu"):
        check_pair()
    load_cann()
