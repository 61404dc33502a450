"""What the host lends a job: shared memory, limits of the user, compilers, and what was compiled before."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npu_plugins.diagnostics.doctor.checks.platform import is_simulated
from npu_plugins.diagnostics.doctor.finding import Finding, ok, warning
from npu_plugins.diagnostics.doctor.machine import CommandError, Machine
from npu_plugins.simulator.settings import format_bytes

_LEAST_SHM = 1 << 30  # bytes; docker gives 64 MiB if not told otherwise
_LEAST_FILES = 4096
_LEAST_LOCKED = 64 << 20  # bytes
_LEAST_PROCESSES = 4096
_OLD_LOCK = 30 * 60.0  # seconds; a build takes one or two minutes
_LEAST_GXX = {True: 11, False: 9}  # by whether NPUs are simulated (C++20); C++17 of torch's headers needs 9


def shared_memory(machine: Machine) -> Iterator[Finding]:
    """Loader workers and ranks have shared memory enough."""
    check = "host.shared_memory"
    if machine.system != "Linux":
        return
    try:
        total, free = machine.space(machine.path("/dev/shm"))
    except OSError as failure:
        yield warning(
            check,
            f"/dev/shm cannot be used ({failure.strerror}).",
            "mount -t tmpfs -o size=16g tmpfs /dev/shm.",
        )
        return
    seen = f"/dev/shm has {format_bytes(total)}, {format_bytes(free)} of them free"
    if total < _LEAST_SHM:
        yield warning(
            check,
            f"{seen}: workers of data loaders, and simulated NPUs, die of a bus error when it is full.",
            "In a container, start it with --shm-size=16g or --ipc=host; else remount it larger.",
        )
    elif free < _LEAST_SHM:
        yield warning(check, f"{seen}.", "Delete what ended jobs have left in /dev/shm.")
    else:
        yield ok(check, f"{seen}.")


def limits(machine: Machine) -> Iterator[Finding]:
    """The user may open files, lock memory and start processes enough."""
    if machine.system == "Windows":
        return
    files = machine.limit("RLIMIT_NOFILE")
    if files is not None and files < _LEAST_FILES:
        yield warning(
            "host.open_files",
            f"A process may open {files} files: many ranks and loader workers need more.",
            "ulimit -n 65535 (for good: /etc/security/limits.conf, or --ulimit nofile=65535 of docker).",
        )
    else:
        yield ok(
            "host.open_files", f"A process may open {'any number of' if files is None else files} files."
        )
    locked = machine.limit("RLIMIT_MEMLOCK")
    if locked is not None and locked < _LEAST_LOCKED:
        yield warning(
            "host.locked_memory",
            f"A process may lock {format_bytes(locked)} of memory: offload to NVMe and pinned"
            " buffers need more.",
            "ulimit -l unlimited (for good: /etc/security/limits.conf, or --ulimit memlock=-1 of docker).",
        )
    else:
        many = "any amount" if locked is None else format_bytes(locked)
        yield ok("host.locked_memory", f"A process may lock {many} of memory.")
    processes = machine.limit("RLIMIT_NPROC")
    if processes is not None and processes < _LEAST_PROCESSES:
        yield warning(
            "host.processes",
            f"User {machine.user} may have {processes} processes and threads: each rank has a"
            " hundred and more.",
            "ulimit -u 65535 (for good: /etc/security/limits.conf).",
        )


def compilers(machine: Machine) -> Iterator[Finding]:
    """g++ and ninja are there for what is compiled on first use."""
    check = "host.compiler"
    chosen = machine.setting("CXX") or "g++"
    if " " not in chosen:  # CXX may be a whole command, such as `ccache g++`
        yield _compiler(machine, check, chosen)
    if machine.package_version("ninja") or machine.which("ninja"):
        yield ok("host.ninja", "ninja is installed.")
    else:
        yield warning(
            "host.ninja",
            "ninja is not installed: DeepSpeed's operators (DeepSpeedCPUAdam) cannot be compiled.",
            "pip install ninja.",
        )


def compiled(machine: Machine) -> Iterator[Finding]:
    """CPUAdam is compiled, and no build that died holds a lock for ever."""
    root = machine.setting("TORCH_EXTENSIONS_DIR")
    home = machine.setting("XDG_CACHE_HOME") or f"{machine.setting('HOME') or '/root'}/.cache"
    caches = (
        [root] if root else [machine.name(path) for path in machine.glob(f"{home}/torch_extensions", "*")]
    )
    finished = [p for cache in caches for p in machine.glob(cache, "npu_plugins/cpu_adam-*/finished")]
    for lock in (p for cache in caches for p in machine.glob(cache, "*/lock")):
        try:
            age = machine.now() - lock.stat().st_mtime
        except OSError:
            continue  # its build has just ended
        if age > _OLD_LOCK:
            yield warning(
                "host.build_lock",
                f"{machine.name(lock)} is {age / 3600:.1f} h old: if no compiler runs, every later"
                " build waits for"
                " it for ever.",
                f"rm {machine.name(lock)}.",
            )
    if finished:
        yield ok("host.cpu_adam", "DeepSpeedCPUAdam is compiled for ZeRO-Offload.")
    else:
        yield ok(
            "host.cpu_adam", "DeepSpeedCPUAdam is not compiled yet: its first use does so, in about a minute."
        )


def _compiler(machine: Machine, check: str, chosen: str) -> Finding:
    least = _LEAST_GXX[is_simulated(machine)]
    mend = f"Install g++ {least} or newer (Debian, Ubuntu: apt install g++), or set CXX to one."
    use = "the simulator and DeepSpeed's operators" if is_simulated(machine) else "DeepSpeed's operators"
    program = chosen if chosen.startswith("/") else machine.which(chosen)
    if program is None:
        return warning(check, f"{chosen} is not in PATH, and {use} are compiled on first use.", mend)
    try:
        said = machine.run([program, "--version"], 30.0).partition("\n")[0].strip()
    except CommandError as failure:
        return warning(check, f"The compiler does not run: {failure}.", mend)
    found = re.search(r"\b(\d+)\.\d+(?:\.\d+)?\s*$", said)
    if "clang" not in said and found and int(found.group(1)) < least:
        return warning(check, f"{said} is too old for {use}.", mend)
    return ok(check, f"{said}.")
