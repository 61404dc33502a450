"""The cause of a hang is found whatever the mesh, the fault, its rank and its place; clean jobs have none."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from npu_plugins.diagnostics.hang.analysis import analyse
from npu_plugins.diagnostics.hang.findings import KINDS
from tests.diagnostics.hang.histories import FAULTS, Fault, Job, source

MESHES = st.tuples(*(st.sampled_from((1, 2, 3)),) * 3).filter(lambda mesh: mesh != (1, 1, 1))
KINDS_OF = {
    "sleep": {"not entered"},
    "kill": {"killed"},
    "raise": {"exception"},
    "out of memory": {"out of memory"},
    "leave": {"left"},
    "shape": {"shape"},
    "dtype": {"dtype"},
    "op": {"op"},
    # What is left out or exchanged shows at the first place where ranks differ, in whatever they differ; or
    # as calls of two groups that wait for each other; or as a rank that comes to its end too early.
    "skip": {"op", "shape", "dtype", "deadlock", "not entered"},
    "swap": {"op", "shape", "dtype", "deadlock", "not entered"},
}


@st.composite
def jobs(draw: st.DrawFn, fault: bool) -> Job:
    tp, dp, pp = draw(MESHES)
    hosts = draw(st.integers(1, 2))
    job = Job(tp, dp, pp, 3, draw(st.sampled_from((1, 3))), hosts, draw(st.sampled_from((0.0, -7.0, 400.0))))
    if not fault:
        return replace(job, moves=draw(st.integers(0, 400)))
    rank = draw(st.integers(0, job.world - 1))
    kind = draw(st.sampled_from(FAULTS))
    places = job.collectives(rank)
    later = places[len(places) // 3 :]  # a rank that was like the others for a step is told from them
    if kind == "swap":
        later = [place for place in later if place + 1 in later]
        kind = kind if later else "skip"
        later = later or places[len(places) // 3 :]
    return replace(job, fault=Fault(kind, rank, draw(st.sampled_from(later))))


@settings(max_examples=120, deadline=None)
@given(jobs(fault=True))
def test_one_fault_is_found_with_its_rank_and_kind(job: Job) -> None:
    assert job.fault is not None
    job.play()
    dumps, absent = job.dumps()
    findings = analyse(dumps, absent, source=source)
    cause = findings.causes[0]
    if job.is_done():  # calls of two groups were exchanged, and nobody minded
        assert job.fault.kind == "swap" and cause.kind == "nothing found"
        return
    assert cause.kind in KINDS_OF[job.fault.kind] and cause.kind in KINDS
    if job.fault.kind in ("skip", "swap"):
        assert job.fault.rank in cause.ranks
    else:
        assert cause.ranks == (job.fault.rank,)


@settings(max_examples=60, deadline=None)
@given(jobs(fault=False))
def test_a_clean_job_has_no_cause_at_any_moment(job: Job) -> None:
    job.play()
    dumps, absent = job.dumps(reason="asked")
    assert analyse(dumps, absent, source=source).causes == ()


@settings(max_examples=20, deadline=None)
@given(jobs(fault=False))
def test_the_skew_of_clocks_is_told(job: Job) -> None:
    job = replace(job, moves=10**6, ahead=1)
    job.play()
    found = analyse(*job.dumps(reason="asked"), source=source).skews
    hosts = {job.host(rank) for rank in range(job.world)}
    assert set(found) == ({f"node-{host + 1}" for host in hosts} if len(hosts) > 1 else set())
    if found:
        assert abs(found["node-2"] - job.skew) < 0.1
