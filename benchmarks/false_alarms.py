"""Whether anything cries wolf: many clean trainings with the preflight, the hang watch and all checks on.

Each run trains a small model for a few steps on simulated NPUs: Llama, Qwen2 and GPT-2, divided over tensor,
pipeline and replicas, with ZeRO 0 to 3, in fp32, bf16 and fp16, with other seeds each time. Before it the
ranks fly a preflight; during it the watch has a short HCCL_TIMEOUT, and gradients, parameters, memory and
values that are not finite are looked at. Whatever any of them finds is an alarm, and a false one.

    python benchmarks/false_alarms.py [--runs 200] [--seconds N]

Ends with 1 if there was an alarm, or a run that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.harness import RankPool, World, WorldSpec  # noqa: E402
from tests.harness.npu import rank_environment, why_no_npu  # noqa: E402

STEPS = 4
HCCL_TIMEOUT = 30
RUN_LIMIT = 300
"""Seconds of a run on a busy machine."""
IMPORTS = ("torch", "torch.distributed", "torch._dynamo", "hf_integration.npu_trainer")
FAMILIES = ("llama", "qwen2", "gpt2")
LAYOUTS = {  # (tp, pp, dp): ZeRO stages
    (1, 1, 2): (0, 1, 2, 3),
    (2, 1, 1): (0,),
    (1, 2, 1): (0,),
    (2, 1, 2): (0, 1, 2),
    (1, 2, 2): (0, 1),
    (2, 2, 1): (0, 1),
    (1, 1, 4): (0, 1, 2, 3),
    (4, 1, 1): (0,),
    (1, 4, 1): (0,),
}
PRECISIONS: dict[str, dict[str, bool]] = {"fp32": {}, "bf16": {"bf16": True}, "fp16": {"fp16": True}}
EVERY = 2
TIED = ("qwen2", "gpt2")
"""Families whose first and last stage share a parameter."""
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb-h1")


@dataclass(frozen=True)
class CleanRun:
    """One training in which nothing is wrong."""

    number: int
    family: str
    tp: int
    pp: int
    dp: int
    stage: int
    precision: str
    schedule: str

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        """Return it in a few words."""
        degrees = f"tp {self.tp} pp {self.pp} dp {self.dp}"
        return f"{self.family} {degrees} ZeRO {self.stage} {self.precision}" + f" {self.schedule}" * (
            self.pp > 1
        )

    @property
    def shares(self) -> bool:
        """Whether two ranks hold the same of anything."""
        replicas = self.dp > 1 and self.stage < 3
        return replicas or self.tp > 1 or (self.pp > 1 and self.family in TIED)

    @property
    def layers(self) -> int:
        """Of the model: enough for two stages on each rank."""
        return max(4, 2 * self.pp)

    def flags(self) -> dict[str, Any]:
        """Return the trainer's arguments beyond the degrees."""
        flags: dict[str, Any] = {"seed": self.number, "data_seed": self.number, **PRECISIONS[self.precision]}
        flags |= {"check_memory": EVERY, "find_nonfinite": True}
        if self.shares:  # else there is nothing to compare, which the check says
            flags["check_gradients"] = EVERY
        if self.pp > 1:
            flags["pipeline_schedule"] = self.schedule
        if self.stage or self.precision != "fp32":
            flags["zero_stage"] = self.stage
            flags["deepspeed"] = {
                "zero_optimization": {"stage": self.stage},
                "train_micro_batch_size_per_gpu": "auto",
                "gradient_accumulation_steps": "auto",
                **{key: {"enabled": "auto"} for key in ("bf16", "fp16")},
            }
        return flags


def clean_runs(count: int) -> Iterator[CleanRun]:
    """Yield different runs, sorted by nothing: layouts, families, precisions and schedules take turns."""
    divisions = [(*layout, stage) for layout, stages in LAYOUTS.items() for stage in stages]
    turns = zip(itertools.cycle(SCHEDULES), itertools.count(), strict=False)
    kinds = itertools.product(PRECISIONS, FAMILIES, divisions)
    for (precision, family, (tp, pp, dp, stage)), (schedule, number) in zip(
        itertools.cycle(kinds), turns, strict=False
    ):
        if number == count:
            return
        yield CleanRun(number, family, tp, pp, dp, stage, precision, schedule)


def train_clean(run: CleanRun, folder: str) -> list[str]:
    """Fly a preflight and train, on one rank; returns the alarms that were given."""
    from npu_plugins.diagnostics import DiagnosticsError, watch_for_hangs
    from tests.hf_integration.divided import Run, train

    watch_for_hangs()
    try:
        alarms = fly(run)
        asked = Run(run.family, run.tp, run.pp, run.dp, run.layers, STEPS, flags=run.flags())
        train(asked, Path(folder), use_cpu=False)
    except DiagnosticsError as error:
        return [f"{type(error).__name__}: {error}"]
    return alarms


def fly(run: CleanRun) -> list[str]:
    """Ask on one rank whether all are ready; returns what was found, warnings too."""
    import torch
    import torch.distributed as dist
    from transformers import set_seed

    from ds_configs.parallel import ParallelConfig
    from npu_plugins.comm import ProcessMesh
    from npu_plugins.diagnostics.preflight import (
        Preflight,
        Settings,
        environment_facts,
        facts_of,
        random_facts,
        version_facts,
    )

    set_seed(run.number)
    degrees = ParallelConfig(tp=run.tp, pp=run.pp, dp=run.dp)
    store = dist.distributed_c10d._get_default_store().clone()
    flight = Preflight(store, dist.get_rank(), degrees, Settings(limit=60.0), tell=lambda report: None)
    flight.meet()
    flight.compare("versions", version_facts())
    flight.compare("environment", environment_facts())
    flight.compare("settings", facts_of("settings", run.flags(), "give all ranks the same"))
    flight.compare("seeds", random_facts(torch.device("npu", torch.npu.current_device())))
    mesh = flight.communicate(lambda: ProcessMesh.create(degrees))
    flight.compare_clocks()
    mesh.destroy()
    return [f"preflight: {finding.what}" for finding in flight.finish().findings]


@dataclass
class Watch:
    """Does the runs, each in a world of its number of ranks, and counts what is said of them."""

    pool: RankPool
    folder: Path
    worlds: dict[int, World] = field(default_factory=dict)
    runs: int = 0
    alarms: int = 0
    failures: int = 0

    def do(self, run: CleanRun) -> None:
        """Do one run and print its line."""
        before, began = self.reports(), time.monotonic()
        alarms, failure = self.outcome(run)
        alarms += [f"hang watch: {path}" for path in sorted(self.reports() - before)]
        self.runs += 1
        self.alarms += len(alarms)
        self.failures += bool(failure)
        told = "; ".join([*alarms, failure]) if alarms or failure else "no alarm"
        print(f"{self.runs:4} {time.monotonic() - began:6.1f} s  {run}: {told}", flush=True)

    def outcome(self, run: CleanRun) -> tuple[list[str], str]:
        """Return the alarms of a run on any of its ranks, and what it died of, if it did."""
        world = self.worlds.get(run.size) or self.pool.open(self.spec(run.size))
        self.worlds[run.size] = world
        folder = self.folder / f"run{run.number}"
        outcomes = world.outcomes(train_clean, run, str(folder), timeout=RUN_LIMIT)
        found = [alarm for outcome in outcomes if outcome.ok for alarm in outcome.value]
        bad = [outcome for outcome in outcomes if not outcome.ok]
        # What a run that broke off, or ZeRO-3, has left in the process is none of the next one's.
        if bad or found or run.stage == 3:
            self.worlds.pop(run.size).kill()
        said = [f"rank {each.rank} {each.kind}: {each.text}\n{each.log}" for each in bad]
        return list(dict.fromkeys(found)), "\n".join(said)

    def spec(self, size: int) -> WorldSpec:
        """Return the world of ranks of clean runs."""
        env = {
            "TORCH_FR_BUFFER_SIZE": "1000",
            "TORCH_HCCL_TRACE_BUFFER_SIZE": "1000",
            "HCCL_TIMEOUT": str(HCCL_TIMEOUT),
            "HCCL_EXEC_TIMEOUT": str(2 * RUN_LIMIT),
            "NPU_PLUGINS_REPORTS": str(self.folder / "reports"),
        }
        return WorldSpec(size, "hccl", env, group_timeout=3.0 * RUN_LIMIT)

    def reports(self) -> set[Path]:
        """Return what the hang watch has written so far."""
        return {path for path in (self.folder / "reports").rglob("*") if path.is_file()}

    def close(self) -> None:
        """Let the ranks go."""
        for world in self.worlds.values():
            world.stop()


def main() -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=200, help="how many")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first, to go on where one stopped"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further run after so long")
    options = parser.parse_args()
    reason = why_no_npu()
    if reason:
        parser.error(reason)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="false-alarms-") as folder,
        contextlib.closing(RankPool(rank_environment(), IMPORTS)) as pool,
        contextlib.closing(Watch(pool, Path(folder))) as watch,
    ):
        for run in itertools.islice(clean_runs(options.runs), options.first, None):
            if time.monotonic() - began > options.seconds:
                break
            watch.do(run)
        print(f"{watch.runs} runs on simulated NPUs: {watch.alarms} alarms, {watch.failures} failed")
    return int(bool(watch.alarms or watch.failures))


if __name__ == "__main__":
    sys.exit(main())
