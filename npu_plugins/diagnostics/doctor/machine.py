"""The machine that the doctor looks at, described by the few things that its checks ask of it.

A check never asks the world itself: it reads below `root`, and calls what is given here. So it can be tried
on a folder that looks like a machine, with an environment and programs that do not exist.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu_plugins.diagnostics.errors import DiagnosticsError

_UNTIL_DEAD = 5.0  # seconds


class CommandError(DiagnosticsError):
    """A program cannot be started, fails, or takes too long."""


@dataclass(frozen=True)
class Interface:
    """A network interface of the host."""

    name: str
    up: bool
    addresses: tuple[str, ...]
    """IPv4 and IPv6, without a scope."""


@dataclass(frozen=True)
class Machine:
    """What can be asked of a machine."""

    root: Path
    environ: Mapping[str, str]
    python: tuple[int, int, int]
    executable: str
    """The Python that would train."""
    system: str
    """As `platform.system()` names it: Linux, Darwin."""
    architecture: str
    hostname: str
    user: str
    cpus: int
    """Processors that this process may use."""
    package_version: Callable[[str], str | None]
    """The version of an installed Python package; None if it is not installed."""
    requirements: Callable[[str], Sequence[str]]
    """What an installed package asks for, each as `name>=1.0; marker`."""
    run: Callable[[Sequence[str], float], str]
    """Runs a program for so many seconds at most and returns its output; raises CommandError."""
    interfaces: Callable[[], Sequence[Interface]]
    resolve: Callable[[str], str]
    """The address of a host name; raises OSError."""
    limit: Callable[[str], int | None]
    """A soft limit by the name of `resource`, such as RLIMIT_NOFILE; None: unlimited."""
    may_open: Callable[[Path], bool]
    """Whether this user may read and write a file."""
    space: Callable[[Path], tuple[int, int]]
    """Bytes of a file system: in all, and free; raises OSError."""
    now: Callable[[], float]
    """Seconds since 1970."""

    def path(self, absolute: str | Path) -> Path:
        """Return where an absolute path of the machine is found from here."""
        return self.root / str(absolute).lstrip("/")

    def name(self, path: Path) -> str:
        """Return a path below `root` as the machine itself names it."""
        return "/" + str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def read(self, absolute: str | Path) -> str | None:
        """Return the text of a file, or None if it cannot be read."""
        try:
            return self.path(absolute).read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):  # ValueError: a name that no file can have, out of another file
            return None

    def glob(self, folder: str, pattern: str) -> list[Path]:
        """Return the paths in a folder that match a pattern, in order; empty if it cannot be listed."""
        try:
            return sorted(self.path(folder).glob(pattern))
        except (OSError, ValueError):
            return []

    def which(self, program: str) -> str | None:
        """Return the absolute path of a program in PATH, as the machine names it, or None."""
        for folder in self.environ.get("PATH", "").split(os.pathsep):
            found = self.path(folder) / program
            if folder and found.is_file() and os.access(found, os.X_OK):
                return str(Path(folder) / program)
        return None

    def setting(self, name: str) -> str | None:
        """Return an environment variable without blanks around it; None if it is unset or empty."""
        return self.environ.get(name, "").strip() or None


def this_machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """Describe the machine and the environment that this process runs in."""
    import getpass
    import platform
    import socket
    import sys
    import time

    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may run a user that has no name
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return Machine(
        root=Path("/"),
        environ=dict(environ),
        python=sys.version_info[:3],
        executable=sys.executable,
        system=platform.system(),
        architecture=platform.machine(),
        hostname=socket.gethostname(),
        user=user,
        cpus=len(affinity(0)) if affinity else os.cpu_count() or 1,
        package_version=_package_version,
        requirements=_requirements,
        run=_runner(environ),
        interfaces=lambda: list(_interfaces()),
        resolve=socket.gethostbyname,
        limit=_limit,
        may_open=lambda path: os.access(path, os.R_OK | os.W_OK),
        space=_space,
        now=time.time,
    )


def _package_version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirements(name: str) -> list[str]:
    from importlib import metadata

    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def _runner(environ: Mapping[str, str]) -> Callable[[Sequence[str], float], str]:
    """Return a function that runs programs, each command once: some take seconds, and several checks ask."""
    said: dict[tuple[str, ...], str | CommandError] = {}

    def run(command: Sequence[str], timeout: float) -> str:
        key = tuple(command)
        if key not in said:
            try:
                said[key] = _run(command, timeout, environ)
            except CommandError as failure:
                said[key] = failure
        answer = said[key]
        if isinstance(answer, CommandError):
            raise answer
        return answer

    return run


def _run(command: Sequence[str], timeout: float, environ: Mapping[str, str]) -> str:
    shown = " ".join(command)
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**environ, "LC_ALL": "C"},
            start_new_session=True,  # a group of its own, so that what it starts can be ended with it
        )
    except (OSError, ValueError) as failure:
        raise CommandError(f"`{shown}` cannot be started ({failure})") from failure
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as failure:
        raise CommandError(f"`{shown}` did not answer within {timeout:g} s") from failure
    finally:
        _end(process)
    if process.returncode != 0:
        lines = [line for line in (errors or output).splitlines() if line.strip()]
        reason = f": {lines[-1].strip()[:300]}" if lines else ""
        raise CommandError(f"`{shown}` ended with status {process.returncode}{reason}")
    return output


def _end(process: subprocess.Popen[str]) -> None:
    """End a program that still runs, and what it has started; one that cannot be ended is not waited for.

    A process that hangs in the driver of a sick card does not die of SIGKILL before the driver answers.
    """
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_UNTIL_DEAD)


def _interfaces() -> Iterator[Interface]:
    import socket

    import psutil

    states = psutil.net_if_stats()
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        known = [a for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6)]
        numbers = tuple(address.address.partition("%")[0] for address in known)
        yield Interface(name, name in states and states[name].isup, numbers)


def _limit(name: str) -> int | None:
    import resource

    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def _space(path: Path) -> tuple[int, int]:
    usage = shutil.disk_usage(path)
    return usage.total, usage.free
