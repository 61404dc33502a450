"""Twelve faults in a training: each is noticed in time, with rank and cause, and nothing is left of the job.

Each job is three ranks on simulated NPUs, or on CPUs with gloo, that end as processes do; several jobs run
side by side. Rank 1 is the one that goes wrong.
"""

from __future__ import annotations

import pytest

from npu_plugins.diagnostics.hang.analysis import analyse
from npu_plugins.diagnostics.hang.files import load
from npu_plugins.diagnostics.hang.findings import Findings
from tests.diagnostics.faults.expected import CHECKED, HANGS
from tests.diagnostics.faults.process import HCCL_TIMEOUT, NODE, SLACK, Ending, Trial, endings
from tests.diagnostics.faults.unready import SLOW_LINK
from tests.harness import RankPool
from tests.simulator.test_failures import holders_of_simulated_memory, shared_memory

pytestmark = pytest.mark.npu

AT_ONCE = 5
"""Jobs that run side by side."""
PRELOADED = (
    "npu_plugins.diagnostics.hang.watch",
    "npu_plugins.diagnostics.consistency",
    "npu_plugins.diagnostics.nonfinite",
    "npu_plugins.diagnostics.preflight",
    "tests.diagnostics.faults.injected",
    "tests.diagnostics.faults.unready",
)
"""What every rank would import."""
CLEAN = Trial("none")
TRIALS = [
    *(Trial(fault, device) for fault in HANGS for device in ("npu", "cpu")),  # those that sleep side by side
    *(Trial(fault, environment=SLOW_LINK if fault == "slow_link" else ()) for fault in CHECKED),
    CLEAN,
]


@pytest.fixture(scope="module")
def ended(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[Trial, Ending]:
    """What became of all jobs."""
    rank_pool.preload(*PRELOADED)
    folder = tmp_path_factory.mktemp("faults")
    before = shared_memory()
    found: dict[Trial, Ending] = {}
    for first in range(0, len(TRIALS), AT_ONCE):
        found.update(endings(rank_pool, TRIALS[first : first + AT_ONCE], folder))
    assert not holders_of_simulated_memory(), f"nothing may hold memory of {NODE} any more"
    assert shared_memory() <= before
    return found


def findings(ending: Ending) -> Findings:
    """Return what the dumps of a job amount to."""
    (report,) = ending.reports.rglob("report.txt")
    return analyse(*load(report.parent))


def told(ending: Ending) -> str:
    """Return the report as the terminal had it, in one line."""
    (report,) = ending.reports.rglob("report.txt")
    return " ".join(report.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("device", ["npu", "cpu"])
@pytest.mark.parametrize("fault", HANGS)
def test_the_report_names_rank_and_cause(fault: str, device: str, ended: dict[Trial, Ending]) -> None:
    ending = ended[Trial(fault, device)]
    kind, on_npus, with_gloo = HANGS[fault]
    cause = findings(ending).causes[0]
    assert cause.kind == kind, told(ending)
    assert cause.ranks == (1,), told(ending)
    assert (on_npus if device == "npu" else with_gloo) in cause.sentence
    assert "rank 1" in cause.sentence.lower()
    assert cause.mend in told(ending)


@pytest.mark.parametrize("fault", CHECKED)
def test_the_check_names_rank_and_cause(fault: str, ended: dict[Trial, Ending]) -> None:
    (ending,) = (each for trial, each in ended.items() if trial.fault == fault)
    said = " ".join(ending.said.split())
    for words in CHECKED[fault]:
        assert words in said


@pytest.mark.parametrize("trial", [trial for trial in TRIALS if trial != CLEAN], ids=str)
def test_the_job_ends_in_time_and_not_well(trial: Trial, ended: dict[Trial, Ending]) -> None:
    """All its processes end by themselves, and their statuses tell a launcher."""
    ending = ended[trial]
    assert "hung" not in ending.statuses
    for rank, status in enumerate(ending.statuses):
        left_in_peace = trial.fault == "never_enters" and rank == 1
        assert (status == "exited with code 0") == left_in_peace, ending.said
    assert ending.seconds() <= HCCL_TIMEOUT + SLACK


def test_a_job_without_a_fault_is_left_alone(ended: dict[Trial, Ending]) -> None:
    ending = ended[CLEAN]
    assert ending.statuses == ["exited with code 0"] * 3, ending.said
    assert not list(ending.reports.rglob("report.txt"))
    assert "Hang report" not in ending.said
