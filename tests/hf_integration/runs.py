"""Runs of the training program for tests: reading their logs, and several of them in one start of ranks.

As a program, ``runs.py FILE`` does on every rank, one after the other, the runs whose arguments FILE lists as
JSON. One start of a launcher and one import of torch then serve all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.harness.pool import RankPool

ROOT = Path(__file__).parents[2]
SMALL = [
    "--config_name",
    "tiny-llama",
    "--block_size",
    "32",
    "--stdlib_bytes",
    "20000",
    "--max_eval_blocks",
    "8",
]


def entries(folder: Path) -> list[dict[str, Any]]:
    """Return the log entries of the run in ``folder``."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def logged(folder: Path, key: str) -> list[float]:
    """Return the values of ``key`` in the log of the run in ``folder``, in order."""
    return [entry[key] for entry in entries(folder) if key in entry]


def launch(
    program: str, arguments: Sequence[str], environment: dict[str, str], timeout: int, ranks: int = 2
) -> str:
    """Start ``program`` on ``ranks`` NPUs with the deepspeed launcher and return what it printed.

    Raises:
        AssertionError: it failed; the message is the end of what it printed.
    """
    # Not above: as a program, this file is in no package.
    from tests.hf_integration.documents.machines import free_port

    launcher = Path(sys.executable).with_name("deepspeed")
    done = subprocess.run(
        [str(launcher), "--num_gpus", str(ranks), "--master_port", str(free_port()), program, *arguments],
        cwd=ROOT,
        env={**environment, "PATH": f"{launcher.parent}:{environment['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def do(runs: Sequence[Sequence[str]]) -> None:
    """Do runs of the training program on this rank, one after the other, given their arguments."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    from hf_integration.train import import_job

    run, _ = import_job()
    for arguments in runs:
        run(arguments)
        # transformers keeps the last configuration; a run without ZeRO-3 must not see one with it.
        unset_hf_deepspeed_config()


def do_on_ranks(pool: RankPool, runs: Sequence[Sequence[str]], ranks: int = 2) -> None:
    """Do runs on NPUs, on ranks of the pool that have no process group yet, as a launcher starts them."""
    # Not above: as a program, this file is in no package.
    from tests.hf_integration.documents.machines import free_port

    pool.preload("deepspeed", "hf_integration.job")
    with pool.world(ranks, None) as world:
        world.run(_do_at, runs, free_port(), timeout=900)


def _do_at(runs: Sequence[Sequence[str]], port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    do(runs)


def main() -> None:
    """Do all runs of the file named last on the command line."""
    from hf_integration.host_only import keep_to_the_host, wants_host_only
    from hf_integration.train import import_job

    runs = json.loads(Path(sys.argv[-1]).read_text(encoding="utf-8"))
    if all(wants_host_only(arguments) for arguments in runs):
        keep_to_the_host()
        import deepspeed

        # On the CPU DeepSpeed would compile its shared-memory collectives, and wait for whoever compiles too.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    do(runs)
    import_job()[1]()


if __name__ == "__main__":
    main()
