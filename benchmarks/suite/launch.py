"""Start the pytest process of a test file: a fresh interpreter or a fork of this process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from suite.network import enter_own_loopback

# A module that sets a variable while it is imported may want it read by the import of torch_npu that follows.
_SETS_ENVIRONMENT = re.compile(
    r"^(os\.environ|os\.putenv|sys\.argv|mp\.set_start|multiprocessing\.set_start)", re.M
)


class Process(Protocol):
    """What `suite.process` asks of a running process."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Exit code, negative for a signal, or None while it runs."""

    def wait(self) -> int:
        """Exit code, after the end."""


@dataclass
class Forked:
    """A forked child of this process."""

    pid: int
    returncode: int | None = None

    def _settle(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def poll(self) -> int | None:
        """Exit code, negative for a signal, or None while it runs."""
        return self._settle(os.WNOHANG)

    def wait(self) -> int:
        """Exit code, after the end."""
        code = self._settle(0)
        assert code is not None
        return code


@dataclass(frozen=True)
class PytestRun:
    """One call of pytest: its arguments, where, with which variables, and the file that takes its output."""

    arguments: list[str]
    folder: Path
    environment: dict[str, str]
    log: Path


def needs_fresh_interpreter(file: Path) -> bool:
    """True if the module changes what the import of torch_npu sees."""
    return _SETS_ENVIRONMENT.search(file.read_text(encoding="utf-8")) is not None


def import_ahead() -> None:
    """Import what every test file imports, so that forks start in a moment. No NPU is touched."""
    import torch
    import torch.distributed.tensor
    import torch.testing._internal.common_distributed
    import torch.testing._internal.common_fsdp
    import torch_npu.testing.testcase  # noqa: F401

    if torch.npu.is_initialized():
        raise RuntimeError(
            "importing torch_npu initialised an NPU; forked test processes could not use theirs."
        )


def _fresh(run: PytestRun) -> subprocess.Popen:
    with run.log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *run.arguments],
            cwd=run.folder,
            env=run.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=enter_own_loopback,  # this program has one thread
        )


def _forked(run: PytestRun) -> Forked:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Forked(pid)
    code = 1
    try:
        code = _pytest_in_child(run)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _pytest_in_child(run: PytestRun) -> int:
    import pytest

    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    out = os.open(run.log, os.O_WRONLY | os.O_APPEND)
    for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, out)):
        os.dup2(source, target)
    enter_own_loopback()
    os.chdir(run.folder)
    os.environ.clear()
    os.environ.update(run.environment)
    sys.path[:0] = run.environment["PYTHONPATH"].split(os.pathsep)
    sys.argv = ["pytest", *run.arguments]
    # Ranks that are spawned must not run this program's main module.
    main = sys.modules["__main__"]
    main.__spec__ = None
    del main.__file__
    return int(pytest.main(run.arguments))


@contextmanager
def own_session(run: PytestRun, fresh: bool) -> Iterator[Process]:
    """Start the run as the leader of a session; on leaving, nothing of it is left."""
    process = _fresh(run) if fresh else _forked(run)
    try:
        yield process
    finally:
        _end_session(process)


def _end_session(process: Process) -> None:
    """Kill every process of the session that `process` leads, however it was reparented."""
    members = [p for p in psutil.process_iter() if p.pid == process.pid or _session_of(p.pid) == process.pid]
    for member in members:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
    psutil.wait_procs([m for m in members if m.pid != process.pid], timeout=5)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
