"""A report is one screen for eight ranks and hardly more for a thousand; its JSON has everything."""

from __future__ import annotations

import json
from dataclasses import replace

from npu_plugins.diagnostics.hang.analysis import analyse
from npu_plugins.diagnostics.hang.findings import Absence, Findings
from npu_plugins.diagnostics.hang.ranks_text import ranks_text, the_ranks
from npu_plugins.diagnostics.hang.report import summary, to_json, write_report
from tests.diagnostics.hang.histories import Fault, Job, source


def findings(job: Job, reason: str = "timeout") -> Findings:
    job.play()
    return analyse(*job.dumps(reason), source=source)


def stuck(tp: int, dp: int, pp: int) -> Job:
    job = Job(tp, dp, pp, 1)
    rank = job.world - 2
    return replace(job, fault=Fault("sleep", rank, job.collectives(rank)[0]))


def test_the_report_of_eight_ranks_is_one_screen_with_the_cause_first() -> None:
    text = write_report(findings(stuck(2, 2, 2)))
    lines = text.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 110
    assert lines[0].startswith("Hang report: 8 ranks on npu (simulated), node-1;")
    assert text.index("Cause: Rank 6 did not come to") < text.index("Mend: ") < text.index("Waiting:")
    assert "Elsewhere:\n  rank 6:\n      /home/user/train.py:7 in load: time.sleep(1000)" in text


def test_the_report_of_1024_ranks_is_as_short() -> None:
    job = stuck(8, 64, 2)
    job.play()
    dumps, absent = job.dumps()
    told = analyse(dumps, absent, source=source)
    text = write_report(told)
    assert told.causes[0].ranks == (1022,)
    assert len(text.splitlines()) <= 60
    assert "(8 groups)" in text


def test_json_has_all_ranks_and_the_causes() -> None:
    told = findings(stuck(2, 2, 1))
    found = json.loads(to_json(told))
    assert found["causes"][0]["ranks"] == [2]
    assert sorted(rank for wait in found["waits"] for rank in wait["ranks"]) == [0, 1, 3]
    assert found["hosts"] == {"node-1": [0, 1, 2, 3]}


def test_the_summary_is_the_first_cause() -> None:
    told = findings(stuck(1, 2, 1))
    assert summary(told) == told.causes[0].sentence
    assert summary(replace(told, causes=())) == "No rank waits for another, and none failed."


def test_what_more_there_is_to_know_has_its_sections() -> None:
    job = Job(1, 2, 1, 2, hosts=2, skew=5.0, fault=Fault("out of memory", 1, 3))
    told = findings(job)
    more = replace(
        told,
        absent={0: Absence("killed", "SIGKILL")},
        memory={1: {"free": 2**29, "total": 2**36}},
        notes=("A note.",),
    )
    text = write_report(more)
    assert "Without a dump:\n  rank 0: killed by SIGKILL\n" in text
    assert "Memory:\n  rank 1: free 0.50 GiB, total 64.00 GiB\n" in text
    assert "  The clock of node-2 is 5.0 s ahead of the first host's" in text and "  A note.\n" in text


def test_ranks_are_drawn_together() -> None:
    assert ranks_text([5, 0, 1, 2, 7]) == "0-2, 5, 7"
    assert ranks_text(range(0, 60, 2), most=3) == "0, 2, 4 and 27 more"
    assert the_ranks({3}) == "rank 3" and the_ranks((3, 3, 4)) == "ranks 3-4"
