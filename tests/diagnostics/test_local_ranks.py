"""Ranks that are started on this machine: they know who they are, fail together, and outlive nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.diagnostics.local_ranks import npu_plugins_command, run_local_ranks

WRITES = """
import os, sys
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS".split()
found = " ".join(os.environ[name] for name in names)
open(os.path.join(sys.argv[1], os.environ["RANK"]), "w").write(found)
"""
ONE_FAILS = """
import os, sys, time
open(os.path.join(sys.argv[1], os.environ["RANK"]), "w").write(str(os.getpid()))
while len(os.listdir(sys.argv[1])) < 2: time.sleep(0.01)
if os.environ["RANK"] == "1": {end}
time.sleep(1000)
"""
STARTER = """
import os, subprocess, sys
command = [sys.executable, "-m", "npu_plugins.diagnostics.local_ranks", str(os.getpid()), "sleep", "1000"]
child = subprocess.Popen(command, start_new_session=True)
while "sleep" not in open(f"/proc/{child.pid}/cmdline").read().split(chr(0)): pass
print(child.pid, flush=True)
child.wait()
"""


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_each_rank_has_the_variables_of_a_launched_one(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    handlers = [signal.getsignal(sig) for sig in (signal.SIGTERM, signal.SIGINT)]
    assert run_local_ranks([sys.executable, "-c", WRITES, str(tmp_path)], 2) == 0
    told = [(tmp_path / str(rank)).read_text().split() for rank in (0, 1)]
    assert [words[:5] for words in told] == [
        ["0", "0", "2", "2", "localhost"],
        ["1", "1", "2", "2", "localhost"],
    ]
    assert told[0][5] == told[1][5] != "0"
    assert {words[6] for words in told} == {os.environ.get("OMP_NUM_THREADS", "1")}
    assert [signal.getsignal(sig) for sig in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("end", "status", "told"),
    [("sys.exit(3)", 3, "status 3"), ("os.kill(os.getpid(), 9)", 128 + 9, "SIGKILL")],
)
def test_a_rank_that_fails_ends_the_others_and_is_named(
    end: str, status: int, told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", ONE_FAILS.format(end=end), str(tmp_path)]
    assert run_local_ranks(command, 2) == status
    assert capfd.readouterr().err == f"npu-plugins: rank 1 of 2 ended with {told}; so does the job\n"
    assert not any(alive(int((tmp_path / str(rank)).read_text())) for rank in (0, 1))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_ranks_end_when_the_process_that_started_them_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        rank = int(starter.stdout.readline())
        assert alive(rank)
        starter.kill()
    deadline = time.monotonic() + 30
    while alive(rank) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(rank)


def test_a_rank_starts_no_ranks_and_nobody_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DiagnosticsError, match="0 ranks cannot be started; give a number from 1"):
        run_local_ranks(["true"], 0)
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(DiagnosticsError, match="rank 3 of a job already"):
        run_local_ranks(["true"], 2)


def test_the_command_runs_this_interpreters_npu_plugins() -> None:
    done = subprocess.run(npu_plugins_command("--version"), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("npu-plugins ")
