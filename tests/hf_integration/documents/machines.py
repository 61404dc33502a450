"""Two simulated machines on this one, for commands that start a job on two."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.harness.npu import rank_environment

ROOT = Path(__file__).parents[3]

# What DeepSpeed's launcher asks of pdsh: run a command on every host, with the host's number for %n. As on
# other machines, little of the launcher's environment gets there; what DeepSpeed exports is in the command.
PDSH = """\
#!{python} -S
import os, subprocess, sys

hosts = sys.argv[sys.argv.index("-w") + 1].split(",")
command = " ".join(sys.argv[sys.argv.index("-w") + 2:])
login = {{name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}}
started = []
for number, host in enumerate(hosts):
    there = login | {{"NPU_SIM_NODE": "{session}-" + host}}
    started.append(subprocess.Popen(["/bin/sh", "-c", command.replace("%n", str(number))], env=there))
sys.exit(max(each.wait() for each in started))
"""
# The launcher asks by ssh whether the first host answers, and which address it has.
SSH = """\
#!/bin/sh
echo 127.0.0.1
"""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def program(name: str) -> str:
    """Return the path of a program that was installed with this interpreter."""
    return str(Path(sys.executable).with_name(name))


def deepspeed_on_two(folder: Path, arguments: Sequence[str], timeout: int) -> str:
    """Run ``deepspeed --num_nodes=2`` with one NPU each; return what it printed.

    Args:
        folder: for the two hosts' names, and the programs that stand for pdsh and ssh.
        arguments: of the launcher after the number of nodes.
        timeout: in seconds.

    Raises:
        AssertionError: it failed; the message is the end of what it printed.
    """
    environment = rank_environment()
    session = environment.pop("NPU_SIM_NODE")
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name, text in {"pdsh": PDSH.format(python=sys.executable, session=session), "ssh": SSH}.items():
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    hosts = folder / "hostfile"
    hosts.write_text("machine-0 slots=1\nmachine-1 slots=1\n", encoding="utf-8")
    environment["PATH"] = f"{programs}:{Path(sys.executable).parent}:{environment['PATH']}"
    command = [program("deepspeed"), "--hostfile", str(hosts), "--master_port", str(free_port())]
    done = subprocess.run(
        [*command, "--num_gpus=1", "--num_nodes=2", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def torchrun_on_two(folder: Path, ranks: int, arguments: Sequence[str], timeout: int) -> None:
    """Run ``torchrun --nnodes=2`` once on each machine, with ``ranks`` ranks there.

    Args:
        folder: for what they print.
        ranks: on each machine.
        arguments: the program and its own.
        timeout: in seconds.

    Raises:
        AssertionError: one failed; the message is the end of what both printed.
    """
    environment = rank_environment()
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    command = [program("torchrun"), f"--nproc_per_node={ranks}", "--nnodes=2", "--master_addr=127.0.0.1"]
    command.append(f"--master_port={free_port()}")
    started = []
    for machine in range(2):
        there = environment | {"NPU_SIM_NODE": f"{os.environ.get('NPU_SIM_NODE', os.getpid())}-{machine}"}
        with (folder / f"machine{machine}.txt").open("w", encoding="utf-8") as output:
            started.append(
                subprocess.Popen(
                    [*command, f"--node_rank={machine}", *arguments],
                    cwd=ROOT,
                    env=there,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        codes = [each.wait(timeout) for each in started]
    finally:
        for each in started:
            each.kill()
    printed = [(folder / f"machine{machine}.txt").read_text(encoding="utf-8") for machine in range(2)]
    assert codes == [0, 0], "\n".join(text[-6000:] for text in printed)
