"""The program as a shell runs it: streams that are closed, full or of another encoding, and an interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = f"{sys.executable} -m ds_configs.cli"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=60,
    )


def test_standard_input_that_is_closed_is_an_empty_file() -> None:
    run = shell(f"{PROGRAM} lint - <&-")
    assert (run.returncode, run.stderr) == (1, "")
    assert "DSC102: the file is empty" in run.stdout


def test_standard_output_that_is_closed_is_no_fault() -> None:
    run = shell(f"{PROGRAM} explain stage >&-")
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_output_that_cannot_be_written_is_said_in_a_sentence() -> None:
    run = shell(f"{PROGRAM} explain stage >/dev/full")
    assert run.returncode == 2
    assert run.stderr == "ds-config: the output cannot be written: No space left on device\n"


def test_a_reader_that_goes_is_no_fault() -> None:
    run = shell(f"{PROGRAM} lint --codes | head -1")
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("command", ["explain train_batch_size", "lint --codes", "list"])
def test_a_terminal_that_knows_few_characters_gets_the_rest_escaped(command: str) -> None:
    run = shell(f"{PROGRAM} {command}", PYTHONIOENCODING="ascii")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.isascii()


def test_an_interrupt_ends_it_quietly() -> None:
    process = subprocess.Popen(
        [*PROGRAM.split(), "lint", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        # A shell starts what it runs in the background, perhaps this very test, with the signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdin
    # More than a pipe holds: once it is written, the program has begun to read, and waits for more.
    process.stdin.write(b" " * 1_000_000)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, b"")
