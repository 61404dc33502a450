"""`npu-plugins hang report` makes the report of dumps in a folder, our own and torch's."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from npu_plugins.cli import main
from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.diagnostics.hang.dump import RankDump
from npu_plugins.diagnostics.hang.files import save_absences, save_dump
from npu_plugins.diagnostics.hang.flight_recorder import find_flight_dumps, load_flight_dumps
from tests.diagnostics.hang.histories import Fault, Job


def saved(directory: Path, fault: str, reason: str = "timeout") -> Path:
    job = Job(2, 2, 1, 2, fault=Fault(fault, 1, 5) if fault else None)
    job.play()
    dumps, absent = job.dumps(reason)
    for dump in dumps.values():
        save_dump(directory, dump)
    save_absences(directory, absent)
    return directory


def record(dump: RankDump) -> dict[str, object]:
    """Return what a flight recorder of torch 2.13 pickles, as its RecordKeeper names it."""
    entries = [
        {
            "process_group": (call.group, ""),
            "collective_seq_id": call.sequence,
            "p2p_seq_id": 0,
            "is_p2p": call.p2p,
            "profiling_name": f"nccl:{call.op}",
            "input_sizes": [list(shape) for shape in call.input_shapes],
            "input_dtypes": list(call.input_dtypes),
            "output_sizes": [],
            "output_dtypes": [],
            "state": call.state,
            "retired": call.state == "completed",
            "time_created_ns": int(call.created * 1e9),
            "frames": [{"name": one.function, "filename": one.file, "line": one.line} for one in call.stack],
        }
        for call in dump.calls
    ]
    groups = {
        group.name: {"name": group.name, "desc": group.description, "ranks": str(list(group.ranks))}
        for group in dump.groups
    }
    return {"version": "2.10", "pg_config": groups, "entries": entries}


@pytest.mark.parametrize(
    ("fault", "words"), [("kill", "Rank 1 was killed by SIGKILL"), ("sleep", "Rank 1 did")]
)
def test_the_report_is_made_of_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str, words: str
) -> None:
    directory = str(saved(tmp_path, fault))
    assert main(["hang", "report", directory]) == 1
    assert words in capsys.readouterr().out
    assert main(["hang", "report", "--json", directory]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["causes"][0]["ranks"] == [1] and words in told["causes"][0]["sentence"]


def test_a_job_that_does_well_ends_with_status_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hang", "report", str(saved(tmp_path, "", "asked"))]) == 0
    assert "No fault found" in capsys.readouterr().out


def test_a_folder_without_dumps_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hang", "report", str(tmp_path)]) == 1
    assert "holds no rank<rank>.json" in capsys.readouterr().err


def test_torchs_own_flight_recorders_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(1, 3, 1, 2, fault=Fault("shape", 1, 3))
    job.play()
    for rank, dump in job.dumps()[0].items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(record(dump)))
    (tmp_path / "notes_1").write_text("no dump")
    assert main(["hang", "report", str(tmp_path)]) == 1
    assert "rank 1 called all_reduce of Float [3, 3, 3]" in capsys.readouterr().out


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("harm",)


@pytest.mark.parametrize(
    "content", [pickle.dumps(Harmful()), pickle.dumps({})[:-1], pickle.dumps({"entries": 1})]
)
def test_a_pickle_that_is_no_flight_recorders_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "trace_0").write_bytes(content)
    with pytest.raises(DiagnosticsError, match="trace_0 is no"):
        load_flight_dumps(find_flight_dumps(tmp_path))
    assert "harm" not in capsys.readouterr().out
