"""`npu-plugins preflight` on ranks of a launcher: ranks of a world, with the variables that launchers set."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from npu_plugins.cli import main
from npu_plugins.diagnostics.preflight import command
from tests.harness import World

OPTIONS = ["preflight", "--timeout", "60", "--bytes", "256K"]


def run(arguments: list[str], port: int, **variables: str) -> tuple[int, str, str]:
    """On a rank: the command's exit status, and what it printed."""
    os.environ.update(variables, MASTER_ADDR="localhost", MASTER_PORT=str(port))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    return status, out.getvalue(), err.getvalue()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


@pytest.mark.npu
@pytest.mark.ranks(4, backend=None)
def test_it_tells_once_that_ranks_on_npus_are_ready(ranks: World) -> None:
    (status, out, err), *others = ranks.run(npus, [*OPTIONS, "--tp", "2"], free_port())
    assert (status, err) == (0, ""), out
    lines = out.splitlines()
    assert "tp 2 × dp 2 × pp 1, hccl" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == [
        "meeting", "settings", "collectives", "links", "clocks", "ready"
    ]  # fmt: skip
    assert "2 × tp, 2 × dp" in out
    assert others == [(0, "", "")] * 3


def npus(arguments: list[str], port: int) -> tuple[int, str, str]:
    """On a rank without a process group: the command, on its own NPU."""
    import torch

    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    return run(arguments, port)


@pytest.mark.ranks(2, backend=None)
def test_it_compares_files_and_variables_and_prints_json(ranks: World, tmp_path: Path) -> None:
    for rank, stage in enumerate((2, 3)):
        file = tmp_path / str(rank) / "ds.json"
        file.parent.mkdir()
        file.write_text(json.dumps({"zero_optimization": {"stage": stage}, "bf16": {"enabled": True}}))
    arguments = [*OPTIONS, "--device", "cpu", "--json", "--no-links"]
    (status, out, _), (other_status, other_out, _) = ranks.run(
        with_own_file, arguments, free_port(), tmp_path
    )
    assert (status, other_status, other_out) == (1, 1, "")
    report = json.loads(out)
    assert not report["ready"]
    told = {finding["what"].split(" is ")[0]: finding for finding in report["findings"]}
    assert set(told) == {
        "ds.json: zero_optimization.stage",
        "environment: HCCL_ALGO",
        "environment: OMP_NUM_THREADS",
    }
    assert told["ds.json: zero_optimization.stage"]["ranks"] == [0, 1], "of two ranks neither is the majority"
    assert told["environment: OMP_NUM_THREADS"]["level"] == "warning"


def with_own_file(arguments: list[str], port: int, folder: Path) -> tuple[int, str, str]:
    """On a rank: the command with a file, and variables, of its own."""
    rank = os.environ["RANK"]
    own: dict[str, Any] = {"OMP_NUM_THREADS": str(1 + int(rank))}
    if rank == "1":
        own["HCCL_ALGO"] = "level0:ring"
    return run([*arguments, "--config", str(folder / rank / "ds.json")], port, **own)


@pytest.mark.ranks(2, backend=None)
def test_a_rank_whose_first_rank_is_not_there_says_so(ranks: World) -> None:
    arguments = ["preflight", "--device", "cpu", "--timeout", "0.5"]
    _, (status, out, err) = ranks.run(only_rank_1, arguments, free_port())
    assert (status, out) == (1, "")
    assert err.startswith("preflight: rank 1 cannot reach the job's store at localhost:")
    assert len(err.splitlines()) == 1


def only_rank_1(arguments: list[str], port: int) -> tuple[int, str, str]:
    """On a rank: the command, on rank 1 only."""
    return run(arguments, port) if os.environ["RANK"] == "1" else (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--timeout", "-1"], "--timeout is -1; give a number above 0"),
        (["--slow-factor", "1"], "--slow-factor is 1; give a number above 1"),
        (["--min-bandwidth", "-2"], "--min-bandwidth is -2"),
        (["--bytes", "1K5"], "--bytes: '1K5' is no size of memory"),
        (["-g", "0"], "the world size is 0; give a whole number of ranks"),
        (["-g", "3", "--tp", "2"], "tp=2 × pp=1 does not divide 3 ranks"),
        ([], "says nothing of how many ranks to start; give -g"),
    ],
)
def test_what_it_refuses(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert main(["preflight", "--device", "cpu", *arguments]) == 1
    assert words in capsys.readouterr().err


def test_more_ranks_than_devices_are_refused_before_one_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(command, "backend_of", lambda kind: "hccl")
    monkeypatch.setattr(command, "devices_here", lambda backend: 2)
    monkeypatch.setattr(command, "run_local_ranks", lambda words, ranks: 0)
    assert main(["preflight", "-g", "2"]) == 0
    assert main(["preflight", "-g", "99"]) == 1
    assert "99 ranks (-g) over hccl need as many devices, but 2 are here" in capsys.readouterr().err


def test_an_unknown_device_and_another_number_of_ranks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["preflight", "--device", "abacus", "-g", "2"]) == 1
    assert "--device abacus: torch.distributed has backends for cpu" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main(["preflight", "--device", "cpu", "-g", "2"]) == 1
    assert "-g is 2, but a launcher has started 4 ranks; leave it out" in capsys.readouterr().err
