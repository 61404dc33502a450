"""Run one test file in processes of its own until every one of its tests has an outcome."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from suite.recorder import DONE, JOURNAL, shorten

POLL_SECONDS = 0.3


@dataclass(frozen=True)
class RunSettings:
    """How the files are run: simulated NPUs, seconds a test and a file may take."""

    tests_root: Path
    npus: int
    test_timeout: float
    file_timeout: float

    def __post_init__(self) -> None:
        if not (self.tests_root / "npu").is_dir():
            raise ValueError(f"{self.tests_root} has no folder npu/; name torch_npu's checkout.")
        if self.npus < 1:
            raise ValueError(f"npus is {self.npus}; at least 1 NPU must be simulated.")
        if min(self.test_timeout, self.file_timeout) <= 0:
            raise ValueError(
                f"timeouts are {self.test_timeout} and {self.file_timeout} s; both must be positive."
            )


@dataclass
class FileRun:
    """What became of a file: test id -> {"outcome": passed|failed|skipped, "text": why, "seconds": wall}."""

    tests: dict[str, dict] = field(default_factory=dict)
    seconds: float = 0.0


@contextmanager
def _own_session(
    command: list[str], settings: RunSettings, environment: dict[str, str], log: Path
) -> Iterator:
    """Start `command` as the leader of a session; on leaving, nothing of it is left."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            cwd=settings.tests_root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end_session(process)


def _end_session(process: subprocess.Popen) -> None:
    """Kill every process of the session that `process` leads, however it was reparented."""
    members = [p for p in psutil.process_iter() if _session_of(p.pid) == process.pid]
    for member in members:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
    psutil.wait_procs(members, timeout=5)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _environment(settings: RunSettings, file: Path, scratch: Path) -> dict[str, str]:
    """The variables that torch_npu's own test/run_test.py sets, and the simulated NPUs."""
    for name in ("barrier", "test_dir"):
        (scratch / name).mkdir(exist_ok=True)
    benchmarks = Path(__file__).resolve().parents[1]
    paths = [str(benchmarks), str(file.parent), str(settings.tests_root), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "NPU_SIM": str(settings.npus),
        "NPU_SIM_NODE": f"suite{os.getpid()}",  # its memory accounting is no business of other jobs here
        "OMP_NUM_THREADS": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
        "TEMP_DIR": str(scratch),
        "BACKEND": "hccl",
        "INIT_METHOD": f"file://{scratch}/shared_init_file",
        "WORLD_SIZE": str(settings.npus),
        JOURNAL: str(scratch / "journal.jsonl"),
        DONE: str(scratch / "done.txt"),
    }


class _Journal:
    """Follows what the recorder writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.running: str | None = None
        self.since = time.time()
        self.finished = False
        self.ended: dict[str, dict] = {}

    def read(self) -> None:
        """Take in the complete lines that were added."""
        if not self._path.exists():
            return
        with self._path.open("rb") as lines:
            lines.seek(self._offset)
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                self._take(json.loads(line))

    def _take(self, record: dict) -> None:
        if record["event"] == "start":
            self.running, self.since = record["test"], time.time()
        elif record["event"] == "end":
            seconds = round(time.time() - self.since, 1)
            self.ended[record["test"]] = {
                "outcome": record["outcome"],
                "text": record["text"],
                "seconds": seconds,
            }
            self.running, self.since = None, time.time()
        self.finished = record["event"] == "finish"


def _follow(
    process: subprocess.Popen, journal: _Journal, settings: RunSettings, deadline: float
) -> str | None:
    """Wait for the process; a sentence why it was given up or died, or None if it settled its tests."""
    while True:
        ended = process.poll() is not None
        journal.read()
        if ended or (journal.finished and time.time() - journal.since > 20):
            break
        if time.time() > deadline:
            return f"the file took longer than {settings.file_timeout:.0f} s"
        if time.time() - journal.since > settings.test_timeout:
            return f"took longer than {settings.test_timeout:.0f} s"
        time.sleep(POLL_SECONDS)
    if journal.finished:
        return None
    code = process.returncode
    return (
        f"the process died of {signal.Signals(-code).name}"
        if code < 0
        else f"the process ended with exit code {code}"
    )


def run_file(file: str, settings: RunSettings, fork_server: bool, skip: set[str] = frozenset()) -> FileRun:
    """Run `file` (relative to the tests' root) but for the tests in `skip`.

    A crash or a hang fails the test that was running; the tests behind it go on in a new process.
    """
    result = FileRun()
    begin = time.time()
    plugins = ["-p", "suite.recorder", *(["-p", "suite.fork_server"] if fork_server else [])]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    command = [*pytest, "--rootdir=.", "--tb=short", *plugins, file]
    while True:
        with tempfile.TemporaryDirectory(prefix="npu_suite_") as folder:
            scratch = Path(folder)
            environment = _environment(settings, settings.tests_root / file, scratch)
            (scratch / "done.txt").write_text("\n".join([*skip, *result.tests]), encoding="utf-8")
            journal, log = _Journal(scratch / "journal.jsonl"), scratch / "log.txt"
            with _own_session(command, settings, environment, log) as process:
                why = _follow(process, journal, settings, begin + settings.file_timeout)
            journal.read()
            result.tests.update(journal.ended)
            if why is None:
                break
            text = f"{why}\n{shorten(log.read_text(errors='replace'))}"
        culprit = journal.running or "collection"
        repeated = culprit in result.tests
        result.tests[culprit] = {
            "outcome": "failed",
            "text": text,
            "seconds": round(time.time() - journal.since, 1),
        }
        if repeated or culprit == "collection" or time.time() > begin + settings.file_timeout:
            break
    result.seconds = round(time.time() - begin, 1)
    return result
