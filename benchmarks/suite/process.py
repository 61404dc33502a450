"""Run one test file in processes of its own until every one of its tests has an outcome."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from suite.launch import Process, PytestRun, needs_fresh_interpreter, own_session
from suite.recorder import DONE, JOURNAL, LOG, OUTPUT, log_since, shorten

POLL_SECONDS = 0.3
# Memory of a simulated NPU: tests that run out of it on purpose fill what they get, at the cost of the host.
HBM = "4GiB"
# Tests that are not started on a machine with less host memory (GiB): they would take it from everybody else.
MEMORY_NEEDED = {
    "npu/test_ipc_event.py::Test_ipc_event::test_d2d_copy3": 40,
    "npu/test_fault_mode.py::TestMode::test_aclrtSetDevice": 40,  # 100 processes that import torch_npu
}


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
    """What became of a file: test id -> {"outcome": passed|failed|skipped, "text": why, "seconds": s}."""

    tests: dict[str, dict] = field(default_factory=dict)
    seconds: float = 0.0


def environment_of_npus(npus: int) -> dict[str, str]:
    """The variables that torch_npu must find when it is imported."""
    return {"NPU_SIM": str(npus), "NPU_SIM_HBM": HBM, "OMP_NUM_THREADS": "1"}


def _environment(settings: RunSettings, file: Path, scratch: Path) -> dict[str, str]:
    """The variables that torch_npu's own test/run_test.py sets, and the simulated NPUs."""
    temporary = scratch / "tests"  # some tests empty it
    for name in ("barrier", "test_dir"):
        (temporary / name).mkdir(parents=True)
    benchmarks = Path(__file__).resolve().parents[1]
    paths = [str(benchmarks), str(file.parent), str(settings.tests_root), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **environment_of_npus(settings.npus),
        "NPU_SIM_NODE": f"suite{os.getpid()}",  # its memory accounting is no business of other jobs here
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
        "TEMP_DIR": str(temporary),
        "BACKEND": "hccl",
        "INIT_METHOD": f"file://{temporary}/shared_init_file",
        "WORLD_SIZE": str(settings.npus),
        JOURNAL: str(scratch / "journal.jsonl"),
        DONE: str(scratch / "done.txt"),
        LOG: str(scratch / "log.txt"),
    }


class _Journal:
    """Follows what the recorder writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.running: str | None = None
        self.log_start = 0
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
            self.running, self.since, self.log_start = record["test"], time.time(), record["log_start"]
        elif record["event"] == "end":
            seconds = round(time.time() - self.since, 1)
            self.ended[record["test"]] = {
                "outcome": record["outcome"],
                "text": record["text"],
                "seconds": seconds,
            }
            self.running, self.since = None, time.time()
        self.finished = record["event"] == "finish"


def _follow(process: Process, journal: _Journal, settings: RunSettings, deadline: float) -> str | None:
    """Wait for the process; a sentence why it was given up or died, or None if it settled its tests."""
    while True:
        ended = process.poll() is not None
        journal.read()
        if ended or journal.finished:
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


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    """A folder for one run; exit functions of a fork would empty a TemporaryDirectory of this process."""
    folder = Path(tempfile.mkdtemp(prefix="npu_suite_"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _without_memory(file: str) -> dict[str, dict]:
    """Outcomes of the file's tests that this machine is too small for."""
    gib = psutil.virtual_memory().total / 2**30
    return {
        test: {
            "outcome": "failed",
            "text": f"needs {need} GiB of host memory, here are {gib:.0f}",
            "seconds": 0,
        }
        for test, need in MEMORY_NEEDED.items()
        if test.startswith(f"{file}::") and gib < need
    }


def run_file(
    file: str, settings: RunSettings, quick: bool, skip: set[str] | frozenset[str] = frozenset()
) -> FileRun:
    """Run `file` (relative to the tests' root) but for the tests in `skip`.

    `quick` forks the process and its ranks where that is safe. A crash or a hang fails the test that was
    running; the tests behind it go on in a new process.
    """
    result = FileRun(_without_memory(file))
    begin = time.time()
    fresh = not quick or needs_fresh_interpreter(settings.tests_root / file)
    plugins = ["-p", "suite.recorder", *(["-p", "suite.fork_ranks"] if quick else [])]
    options = ["-q", "-p", "no:cacheprovider", "--rootdir=.", "--capture=no", "--tb=short", "-c"]
    if "import pytest" not in (settings.tests_root / file).read_text(encoding="utf-8"):
        # The file knows unittest's classes only: a helper called test… is no test of its own.
        options = ["-o", "python_functions=", "-o", "python_classes=", *options]
    arguments = [*options, os.devnull, *plugins, file]
    while True:
        with _scratch_folder() as scratch:
            environment = _environment(settings, settings.tests_root / file, scratch)
            (scratch / "done.txt").write_text("\n".join([*skip, *result.tests]), encoding="utf-8")
            journal, log = _Journal(scratch / "journal.jsonl"), scratch / "log.txt"
            log.touch()
            with own_session(PytestRun(arguments, settings.tests_root, environment, log), fresh) as process:
                why = _follow(process, journal, settings, begin + settings.file_timeout)
            journal.read()
            result.tests.update(journal.ended)
            if why is None:
                break
            text = f"{why}{OUTPUT}{shorten(log_since(log, journal.log_start))}"
        culprit = journal.running or "collection"
        repeated = culprit in result.tests
        seconds = round(time.time() - journal.since, 1)
        result.tests[culprit] = {"outcome": "failed", "text": text, "seconds": seconds}
        if repeated or culprit == "collection" or time.time() > begin + settings.file_timeout:
            break
    result.seconds = round(time.time() - begin, 1)
    return result
