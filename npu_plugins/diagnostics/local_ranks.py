"""Starts a command as the ranks of a job on this machine, and lets none of them outlive it.

torch's elastic agent does the work, as it does for torchrun: the ranks meet in its store, so no port must be
free, and a rank that fails ends the others. What it leaves out is added: ranks end with this process even if
that is killed, and one sentence stands in place of its log.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from npu_plugins.diagnostics.errors import DiagnosticsError

_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1  # prctl(2)


def run_local_ranks(command: Sequence[str], ranks: int, shutdown_timeout: int = 10) -> int:
    """Run `command` in `ranks` processes on this machine until all have ended.

    Each has the variables of a launched rank (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR,
    MASTER_PORT) and this process's standard streams. It must be called in the main thread: what ends this
    process ends the ranks.

    Args:
        command: the program with its arguments, such as ``npu_plugins_command("preflight")``.
        ranks: how many, from 1.
        shutdown_timeout: seconds from asking a rank to end (SIGTERM) to ending it (SIGKILL).

    Returns:
        0 if all ranks ended well, else the status of the rank that failed first, as a shell tells it: 128 +
        the number of a signal. A sentence on stderr then names the rank.

    Raises:
        DiagnosticsError: `ranks` is below 1, or this process is a rank of a job itself.
    """
    if ranks < 1:
        raise DiagnosticsError(f"{ranks} ranks cannot be started; give a number from 1")
    if "RANK" in os.environ:
        raise DiagnosticsError(
            f"This process is rank {os.environ['RANK']} of a job already (RANK is set) and starts no ranks "
            "of its own; leave that to the launcher, or unset RANK"
        )
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    bound = ["-m", "npu_plugins.diagnostics.local_ranks", str(os.getpid()), *command]
    with _quiet(), _signals_put_back():
        try:
            elastic_launch(_configuration(ranks, shutdown_timeout), sys.executable)(*bound)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            how = failure.signal_name() if failure.exitcode < 0 else f"status {failure.exitcode}"
            print(f"npu-plugins: rank {rank} of {ranks} ended with {how}; so does the job", file=sys.stderr)
            return 128 - failure.exitcode if failure.exitcode < 0 else failure.exitcode
        except SignalException as error:
            return 128 + int(error.sigval)
    return 0


def usual_backend() -> str:
    """Return the backend of this machine's accelerator, such as hccl or nccl; gloo if it has none."""
    import torch
    import torch.distributed as dist

    for kind, backend in dist.Backend.default_device_backend_map.items():
        module = getattr(torch, kind, None)
        if kind not in ("cpu", "mps") and module is not None and module.is_available():
            return backend
    return "gloo"


def devices_here(backend: str) -> int | None:
    """Return how many devices this machine has for ranks of `backend`; None for a CPU, which ranks share.

    Raises:
        CommError: torch knows no such backend.
    """
    import torch

    from npu_plugins.comm.devices import backend_device_type

    kind = backend_device_type(backend)
    return None if kind == "cpu" else getattr(torch, kind).device_count()


def npu_plugins_command(*arguments: str) -> list[str]:
    """Return the command that runs ``npu-plugins ARGUMENTS`` with this interpreter."""
    start = "import sys; from npu_plugins.cli import main; sys.exit(main())"
    return [sys.executable, "-c", start, *arguments]


def bind_to_parent(parent: int) -> None:
    """Let the kernel end this process when process `parent`, which started it, ends; Linux only.

    It outlasts an exec. Elsewhere ranks whose starter is killed notice when its store is gone.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def _configuration(ranks: int, shutdown_timeout: int) -> Any:
    """Return torch's LaunchConfig, whose module is imported only when ranks are started."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",  # the name of the machine need not resolve
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # else a folder stays when this process is killed
        signals_to_handle=",".join(sig.name for sig in _HANDLED),
        shutdown_timeout=shutdown_timeout,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the agent's log back: a failure is told in one sentence."""
    logger = logging.getLogger("torch.distributed.elastic")
    handler, propagate = logging.NullHandler(), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagate
        logger.removeHandler(handler)


@contextlib.contextmanager
def _signals_put_back() -> Iterator[None]:
    """Give this process its own handlers back, in whose place the agent sets its own."""
    before = {sig: signal.getsignal(sig) for sig in _HANDLED}
    try:
        yield
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)


def _become(parent: int, command: Sequence[str]) -> None:
    """Be the command, bound to the process that starts the ranks."""
    bind_to_parent(parent)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does: ranks would fight for the cores
    os.execvp(command[0], list(command))


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
