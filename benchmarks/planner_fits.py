"""Whether what the planner proposes fits when it is run, on simulated NPUs with little memory.

The planner is asked about a small model on 2 and 4 NPUs. Every strategy that runs today is then trained for
three steps on simulated NPUs that have just the memory at which the planner still says that it fits: ZeRO and
AutoTP by the launch command that it prints, with this repository's train.py, pipelines by
``planner_pipeline.py``. As a control the strategy that needs most is run with so little
memory that the planner rejects it by far, and must run out of it.

Run as ``python benchmarks/planner_fits.py`` on an otherwise idle machine; it takes about a minute a run.
``--list`` only prints what would be run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ds_configs.generate import to_text
from ds_configs.hardware import load_hardware
from ds_configs.models import find_model
from ds_configs.plan import Candidate, PlanRequest, ds_config, launch_command, plan

ROOT = Path(__file__).parents[1]
MODEL = "llama-100m"
STEPS = 3
MIB = 2**20
HCCL_BUFFER_MIB = 1
CONTROL_EXCESS = 0.3
"""Part of its prediction that the control lacks: more than any error of the memory model."""
OUT_OF_MEMORY = ("out of memory", "OutOfMemoryError")
RUN_SECONDS = 900


@dataclass(frozen=True)
class Scenario:
    """A question to the planner."""

    npus: int
    seq: int
    batch: int

    def request(self, memory: float = 64 * 2**30) -> PlanRequest:
        """Return the question for cards with ``memory`` bytes."""
        card = load_hardware("ascend-910b2").with_figures(hbm_bytes=memory)
        buffer = HCCL_BUFFER_MIB * MIB
        return PlanRequest(
            find_model(MODEL), self.npus, card, self.seq, self.batch, hccl_buffer=buffer, today_only=True
        )


SCENARIOS = (Scenario(2, 128, 4), Scenario(2, 1024, 4), Scenario(4, 128, 8))


@dataclass(frozen=True)
class Run:
    """One strategy to train, on cards with ``memory_mib``."""

    scenario: Scenario
    candidate: Candidate
    predicted: int
    """Bytes."""
    memory_mib: int
    fits: bool
    """What the planner says at that memory."""


def runs(scenario: Scenario) -> list[Run]:
    """Return each strategy at the least memory at which the planner takes it, and one control."""
    chosen = []
    for proposal in plan(scenario.request()).proposals:
        needed = proposal.memory.total
        memory = math.ceil(needed / (1 - scenario.request().margin) / MIB)
        again = plan(scenario.request(memory * MIB)).proposals
        same = next(each for each in again if each.family == proposal.family)
        chosen.append(Run(scenario, same.candidate, same.memory.total, memory, True))
    most = max(chosen, key=lambda run: run.predicted)
    memory = int(most.predicted * (1 - CONTROL_EXCESS) / MIB)
    tight = scenario.request(memory * MIB)
    assert all(each.family != most.candidate.family for each in plan(tight).proposals)
    return [*chosen, Run(scenario, most.candidate, most.predicted, memory, False)]


def command(run: Run, folder: Path) -> list[str]:
    """Write the run's configuration into ``folder`` and return the words that start it."""
    request, candidate = run.scenario.request(), run.candidate
    config_file = folder / "ds_config.json"
    config, _ = ds_config(request, candidate)
    if candidate.job.parallel.pp > 1:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}  # the program's part of the bargain
    config_file.write_text(to_text(config), encoding="utf-8")
    if candidate.job.parallel.pp > 1:
        program = str(ROOT / "benchmarks" / "planner_pipeline.py")
        words = shlex.split(launch_command(request, candidate, program, str(config_file)))
        job = candidate.job
        sizes = {
            "model": MODEL,
            "stages": job.parallel.pp,
            "sequence": job.seq,
            "recompute": job.recomputation == "full",
            "steps": STEPS,
        }
        return [*words, "--job", json.dumps(sizes)]
    program = str(ROOT / "hf_integration" / "train.py")
    words = shlex.split(launch_command(request, candidate, program, str(config_file)))
    extra = f"--config_name {MODEL} --block_size {run.scenario.seq} --max_steps {STEPS} --do_eval false"
    return [
        *words,
        *extra.split(),
        "--sample_tokens",
        "0",
        "--output_dir",
        str(folder / "out"),
        "--report_to",
        "none",
    ]


def train(run: Run) -> tuple[str, float]:
    """Run it; return ``ran``, ``out of memory`` or the last line of what it said, and its seconds."""
    environment = {
        **os.environ,
        "NPU_SIM": str(run.scenario.npus),
        "NPU_SIM_HBM": f"{run.memory_mib}MiB",
        "HCCL_BUFFSIZE": str(HCCL_BUFFER_MIB),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="planner-fits-") as folder:
        done = subprocess.run(
            command(run, Path(folder)),
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    seconds = time.perf_counter() - started
    said = done.stdout + done.stderr
    if done.returncode == 0:
        return "ran", seconds
    if any(words in said for words in OUT_OF_MEMORY):
        return "out of memory", seconds
    return (said.strip().splitlines() or [f"status {done.returncode}"])[-1], seconds


def main(argv: list[str] | None = None) -> int:
    """Train every strategy; return 0 if all that should fit did and no control did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print what would be run")
    args = parser.parse_args(argv)
    wrong = total = controls = 0
    print(f"{MODEL}; memory in MiB an NPU: what there is, what is predicted")
    for scenario in SCENARIOS:
        for run in runs(scenario):
            job = run.candidate.job
            line = (
                f"{scenario.npus} NPUs  seq {job.seq:<5}{run.memory_mib:>5} {run.predicted // MIB:>5}  "
                f"{'fits' if run.fits else 'does not fit':<14}{run.candidate.family:<28}"
                f"{job.micro_batch} x {job.micro_batches}, {job.recomputation:<4} recomputed"
            )
            if args.list:
                print(line)
                continue
            outcome, seconds = train(run)
            right = outcome == ("ran" if run.fits else "out of memory")
            wrong, total, controls = wrong + (not right), total + run.fits, controls + (not run.fits)
            print(f"{line}: {outcome} ({seconds:.0f} s){'' if right else '  <-- WRONG'}", flush=True)
    if not args.list:
        print(f"{total} proposals and {controls} controls: {wrong} wrong (goal 0)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
