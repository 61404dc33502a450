"""The life of one rank: born by fork, joins its world, runs functions until told to stop."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import cloudpickle

from tests.harness.outcome import Outcome
from tests.harness.spec import WorldSpec

PR_SET_PDEATHSIG = 1
SEED = 1234
SKIP_EXCEPTIONS = ("Skipped", "SkipTest")


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere the pipe's EOF ends it)."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def log_path(directory: str, rank: int) -> Path:
    """Where a rank's stdout and stderr go."""
    return Path(directory) / f"rank{rank}.log"


def stack_path(directory: str, rank: int) -> Path:
    """Where a rank dumps its stacks when it gets SIGUSR1 or a fatal signal."""
    return Path(directory) / f"rank{rank}.stack"


def _redirect_output(spec: WorldSpec, rank: int) -> None:
    descriptor = os.open(log_path(spec.directory, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    os.close(null)
    stacks = open(stack_path(spec.directory, rank), "w")  # noqa: SIM115 - faulthandler needs it for life
    faulthandler.enable(stacks, all_threads=True)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True, chain=False)


def _set_environment(spec: WorldSpec, rank: int, port: int) -> None:
    os.environ["NPU_PLUGINS_REPORTS"] = spec.directory  # of ranks that fail, which some tests mean to do
    os.environ.update(spec.env)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(spec.size),
        LOCAL_WORLD_SIZE=str(spec.size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )


def _join(spec: WorldSpec, rank: int, listener: socket.socket) -> None:
    """Seed everything, choose the device and make the default process group."""
    import torch
    import torch.distributed as dist

    random.seed(SEED)
    torch.manual_seed(SEED)
    if spec.backend is None:
        return
    if "hccl" in spec.backend:
        torch.npu.set_device(rank)
    timeout = timedelta(seconds=spec.group_timeout)
    store = dist.TCPStore(
        "127.0.0.1",
        listener.getsockname()[1],
        spec.size,
        is_master=rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=os.dup(listener.fileno()) if rank == 0 else None,
    )
    dist.init_process_group(spec.backend, store=store, rank=rank, world_size=spec.size, timeout=timeout)


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _attempt(rank: int, task: Callable[[], Any]) -> Outcome:
    """Run `task`; whatever it raises becomes the outcome's text."""
    try:
        value = task()
    except BaseException as error:
        if type(error).__name__ in SKIP_EXCEPTIONS:
            return Outcome(rank, "skipped", text=str(error))
        return Outcome(rank, "raised", text=traceback.format_exc(), error=error)
    return Outcome(rank, "returned", value=value)


def _send(connection: Connection, outcome: Outcome) -> None:
    try:
        payload = cloudpickle.dumps(outcome)
        if outcome.error is not None:
            cloudpickle.loads(payload)  # many exceptions pickle but do not unpickle
    except Exception:
        if outcome.ok:
            text = f"The result cannot be sent back:\n{traceback.format_exc()}"
            outcome = Outcome(outcome.rank, "raised", text=text)
        else:
            outcome = replace(outcome, error=None)
        payload = cloudpickle.dumps(outcome)
    connection.send_bytes(payload)


def _serve(connection: Connection, rank: int) -> None:
    """Run what the parent sends until it says stop or goes away."""
    while True:
        payload = connection.recv_bytes()
        if not payload:
            return

        def task(payload: bytes = payload) -> Any:
            function, args, kwargs = cloudpickle.loads(payload)
            return function(*args, **kwargs)

        outcome = _attempt(rank, task)
        _flush()
        _send(connection, outcome)


def live(spec: WorldSpec, rank: int, listener: socket.socket) -> Literal[0, 1]:
    """Be rank `rank` of `spec` from fork to exit; returns the exit code."""
    os.setsid()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _redirect_output(spec, rank)
    _set_environment(spec, rank, listener.getsockname()[1])
    threading.current_thread().name = f"rank {rank}"
    caller = socket.socket(socket.AF_UNIX)
    caller.connect(spec.address)
    connection = Connection(caller.detach())
    connection.send(rank)
    joined = _attempt(rank, lambda: _join(spec, rank, listener))
    _send(connection, joined)
    if not joined.ok:
        return 1
    try:
        _serve(connection, rank)
        _leave()
    except (EOFError, ConnectionResetError):
        return 1
    finally:
        _flush()
    return 0
