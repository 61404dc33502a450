"""The twelve faults of `tests/diagnostics/faults` under each launcher: who is named, and how the job ends.

Each job is started as a user starts it, by `deepspeed`, `torchrun` or `accelerate launch` on three simulated
NPUs, and by `torchrun` on CPUs with gloo; rank 1 is the one that goes wrong. Of each the table tells whether
the report (or the check of the program) named rank 1 and the right cause, the seconds from the fault to the
end of all its processes, and the launcher's exit status. The limit is HCCL_TIMEOUT (6 s) and 10 s more.

    python benchmarks/faults_under_launchers.py [FAULT ...] [--launchers torchrun ...] [--logs DIR]

Ends with 1 if anything is not as it should be.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from npu_plugins.diagnostics.hang.analysis import analyse  # noqa: E402
from npu_plugins.diagnostics.hang.files import load  # noqa: E402
from tests.diagnostics.faults.expected import CHECKED, HANGS  # noqa: E402
from tests.diagnostics.faults.process import FAULT_AT, HCCL_TIMEOUT, SLACK  # noqa: E402
from tests.harness.npu import rank_environment, why_no_npu  # noqa: E402

MODULE = "tests.diagnostics.faults.training"
RANKS = 3
LIMIT = 240
"""Seconds of a job on a busy machine."""
MARK = "NPU_PLUGINS_FAULT_JOB"
SLOW_LINK = {"NPU_SIM_SLOW_LINK": "1-2:40"}
LAUNCHERS = {
    "deepspeed": "deepspeed --num_gpus {ranks} --master_port {port} --module {module}",
    "torchrun": "torchrun --nproc_per_node {ranks} --master_port {port} -m {module}",
    "accelerate": "accelerate launch --multi_gpu --num_processes {ranks} --num_machines 1 "
    "--mixed_precision no --dynamo_backend no --main_process_port {port} -m {module}",
    "torchrun, gloo": "torchrun --nproc_per_node {ranks} --master_port {port} -m {module}",
}


@dataclass(frozen=True)
class Ending:
    """What became of a job."""

    fault: str
    launcher: str
    named: str
    """The cause and ranks of the report, or what the check should have said and did not."""
    is_right: bool
    seconds: float
    """From the fault to the end of the launcher."""
    status: int
    survivors: list[str]

    @property
    def is_well(self) -> bool:
        """Whether all is as the issue asks."""
        in_time = self.seconds <= HCCL_TIMEOUT + SLACK
        return self.is_right and in_time and self.status != 0 and not self.survivors


def run(fault: str, launcher: str, logs: Path) -> Ending:
    """Run one job to its end."""
    name = f"{fault} {launcher}".replace(", ", "-").replace(" ", "-")
    reports, log = logs / name, logs / f"{name}.log"
    device = "cpu" if launcher.endswith("gloo") else "npu"
    command = LAUNCHERS[launcher].format(ranks=RANKS, port=free_port(), module=MODULE).split()
    command = [str(Path(sys.executable).parent / command[0]), *command[1:], fault, "--device", device]
    environment = environment_of(fault, reports) | {MARK: name}
    with log.open("w", encoding="utf-8") as output:
        job = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = job.wait(LIMIT)
        except subprocess.TimeoutExpired:
            status = 0
    ended = time.time()
    survivors = marked(name)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    said = log.read_text(encoding="utf-8", errors="replace")
    found = FAULT_AT.search(said)
    named, is_right = judged(fault, device, reports, said)
    seconds = ended - float(found[1]) if found else float("inf")
    return Ending(fault, launcher, named, is_right, seconds, status, survivors)


def environment_of(fault: str, reports: Path) -> dict[str, str]:
    """Return what a job finds in its environment."""
    environment = rank_environment() | {
        "PYTHONPATH": str(ROOT),
        "HCCL_TIMEOUT": str(HCCL_TIMEOUT),
        "NPU_PLUGINS_REPORTS": str(reports),
        "OMP_NUM_THREADS": "1",
    }
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return environment | (SLOW_LINK if fault == "slow_link" else {})


def judged(fault: str, device: str, reports: Path, said: str) -> tuple[str, bool]:
    """Return what was named, and whether that is right."""
    if fault in CHECKED:
        words = " ".join(said.replace("\n[rank", " [rank").split())
        missing = [each for each in CHECKED[fault] if each not in words]
        return ("not said: " + "; ".join(missing) if missing else "as the check should say"), not missing
    written = list(reports.rglob("report.txt"))
    if len(written) != 1:
        return f"{len(written)} reports", False
    cause = analyse(*load(written[0].parent)).causes[0]
    kind, on_npus, with_gloo = HANGS[fault]
    words = on_npus if device == "npu" else with_gloo
    right = (cause.kind, cause.ranks) == (kind, (1,)) and words in cause.sentence
    return f"{cause.kind}, ranks {cause.ranks}" + ("" if right else f": {cause.sentence}"), right


def marked(name: str) -> list[str]:
    """Return the processes of a job that live still."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == name and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.name()}")
    return found


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def shown(endings: list[Ending]) -> Table:
    """Return the table."""
    table = Table("fault", "launcher", "named", "seconds", "status", "survivors", "")
    for each in endings:
        verdict = "well" if each.is_well else "[red]not well"
        survivors = ", ".join(each.survivors) or "none"
        table.add_row(
            each.fault, each.launcher, each.named, f"{each.seconds:.1f}", str(each.status), survivors, verdict
        )
    return table


@contextlib.contextmanager
def folder(given: Path | None) -> Iterator[Path]:
    """Yield where logs and reports go: the folder asked for, or one that is deleted."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def main() -> int:
    """Run the jobs; returns 1 if one is not as it should be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    faults = [*HANGS, *CHECKED]
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(faults)}; default: all")
    parser.add_argument("--launchers", nargs="+", choices=list(LAUNCHERS), default=list(LAUNCHERS))
    parser.add_argument("--at-once", type=int, default=2, help="jobs side by side (default: 2)")
    parser.add_argument("--logs", type=Path, help="keep logs and reports in this folder, empty or new")
    options = parser.parse_args()
    unknown = sorted(set(options.faults) - set(faults))
    if unknown:
        parser.error(f"no such fault: {', '.join(unknown)}; there are {', '.join(faults)}")
    reason = why_no_npu()
    if reason:
        parser.error(reason)
    jobs = [(fault, launcher) for fault in options.faults or faults for launcher in options.launchers]
    # The link that is slow, and its bandwidths, are the simulated NPUs'.
    jobs = [job for job in jobs if job != ("slow_link", "torchrun, gloo")]
    with folder(options.logs) as logs, ThreadPoolExecutor(options.at_once) as pool:
        endings = []
        for ending in pool.map(lambda job: run(*job, logs), jobs):
            endings.append(ending)
            print(ending, flush=True)
    Console(width=150).print(shown(endings))
    return 0 if all(ending.is_well for ending in endings) else 1


if __name__ == "__main__":
    sys.exit(main())
