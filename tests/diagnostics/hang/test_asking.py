"""Only a process that answers the signal is asked: any other would be ended by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from npu_plugins.cli import main
from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.diagnostics.hang.asking import WatchedProcess, ask, watched_ranks

ANSWERS = """
import sys
from npu_plugins.diagnostics.hang.wakeup import Wakeup

wakeup = Wakeup()
wakeup.listen()
print("ready", flush=True)
wakeup.wait(60, [])
print("asked" if wakeup.asked() else "not asked")
wakeup.forget()
print("asked" if wakeup.asked() else "not asked")
"""


def start(code: str, **environ: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_process_with_the_handler_is_found_asked_and_lives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with start(ANSWERS, RANK="3", NPU_PLUGINS_REPORTS=str(tmp_path)) as process:
        assert WatchedProcess(process.pid, "3", tmp_path) in watched_ranks()
        assert main(["hang", "dump", "--pid", str(process.pid)]) == 0
        assert f"asked rank 3 (process {process.pid})" in capsys.readouterr().out
        assert process.communicate()[0].split("\n")[:2] == ["asked", "not asked"]
    assert process.returncode == 0


def test_a_process_without_it_is_not_signalled() -> None:
    with start("print('ready', flush=True); input()", RANK="0") as process:
        assert process.pid not in [rank.pid for rank in watched_ranks()]
        with pytest.raises(DiagnosticsError, match="does not handle SIGUSR2, which would end it"):
            ask([process.pid])
        process.communicate("\n")
    assert process.returncode == 0


def test_a_process_that_is_gone_is_told() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    with pytest.raises(DiagnosticsError, match=f"Process {process.pid} cannot be asked"):
        ask([process.pid])
