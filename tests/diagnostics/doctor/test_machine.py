"""What the real machine is asked, and how its programs are run."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from npu_plugins.diagnostics.doctor import Machine, this_machine
from npu_plugins.diagnostics.doctor.machine import CommandError


@pytest.fixture
def here() -> Machine:
    return this_machine({"PATH": os.environ["PATH"], "WORD": "said"})


def test_it_describes_this_process(here: Machine) -> None:
    assert here.python == sys.version_info[:3] and here.executable == sys.executable
    assert here.package_version("pytest") == pytest.__version__
    assert here.package_version("no-such-package") is None and here.requirements("no-such-package") == []
    assert "127.0.0.1" in {address for i in here.interfaces() for address in i.addresses}
    total, free = here.space(Path("/"))
    assert 0 < free <= total
    assert here.resolve("127.0.0.1") == "127.0.0.1"
    assert here.which("sh") is not None and here.which("no-such-program") is None


def test_a_program_gets_the_environment_that_is_described(here: Machine) -> None:
    assert here.run(["sh", "-c", "echo $WORD"], 10.0) == "said\n"


def test_a_program_is_run_once(here: Machine, tmp_path: Path) -> None:
    command = ["sh", "-c", f"echo x >> {tmp_path}/runs; cat {tmp_path}/runs"]
    assert [here.run(command, 10.0), here.run(command, 10.0)] == ["x\n", "x\n"]


def test_a_program_that_fails_is_quoted(here: Machine) -> None:
    with pytest.raises(CommandError, match="status 3: no card"):
        here.run(["sh", "-c", "echo no card >&2; exit 3"], 10.0)
    with pytest.raises(CommandError, match="cannot be started"):
        here.run(["/no/such/program"], 10.0)


def test_a_program_that_hangs_is_ended_with_all_that_it_started(here: Machine, tmp_path: Path) -> None:
    begun = time.monotonic()
    # The grandchild holds the pipe: ending the child alone would leave the reader waiting for it.
    with pytest.raises(CommandError, match="did not answer within 0.3 s"):
        here.run(["sh", "-c", f"sleep 50 & echo $! > {tmp_path}/pid; wait"], 0.3)
    assert time.monotonic() - begun < 40
    grandchild = Path("/proc") / (tmp_path / "pid").read_text().strip()
    deadline = time.monotonic() + 10
    while (
        (grandchild / "cmdline").exists()
        and (grandchild / "cmdline").read_bytes()
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    assert not (grandchild / "cmdline").exists() or not (grandchild / "cmdline").read_bytes()


def test_paths_lie_below_the_root(tmp_path: Path) -> None:
    import dataclasses

    machine = dataclasses.replace(this_machine({}), root=tmp_path)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "file").write_text("text")
    assert machine.read("/etc/file") == "text" and machine.read("/etc/none") is None
    assert machine.read("/etc\0") is None and machine.glob("/no\0", "*") == []
    assert [machine.name(path) for path in machine.glob("/etc", "f*")] == ["/etc/file"]
