"""Whether what the planner proposes fits when it is run, on simulated NPUs with little memory.

The planner is asked about a small model on 2 and 4 NPUs. Every strategy of DeepSpeed's is then trained for
three steps, with the configuration that the planner writes, on simulated NPUs that have just the memory at
which the planner still says that it fits. As a control the strategy that needs most is run with so little
memory that the planner rejects it by far, and must run out of it.

    python benchmarks/planner_fits.py [--list] [--model NAME] [--scenario N …]

Ends with 1 if a proposal runs out of memory or fails otherwise, or if a control does not run out.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from accuracy.case import Case  # noqa: E402

from ds_configs.hardware import load_hardware  # noqa: E402
from ds_configs.models import find_model  # noqa: E402
from ds_configs.plan import Candidate, PlanRequest, Proposal, ds_config, plan  # noqa: E402
from ds_configs.plan.config import reserve  # noqa: E402
from ds_configs.resolve import TrainingRun, resolve  # noqa: E402
from tests.harness import HarnessError, RankFailure, RankPool  # noqa: E402
from tests.harness.npu import rank_environment, why_no_npu  # noqa: E402

STEPS = 3
MIB = 2**20
HCCL_BUFFER_MIB = 1
CONTROL_EXCESS = 0.3
"""Part of its prediction that the control lacks: more than any error of the memory model."""
OUT_OF_MEMORY = ("out of memory", "OutOfMemoryError")
IMPORTS = ("torch", "torch.distributed", "torch._dynamo", "transformers", "deepspeed", "accuracy.models")


@dataclass(frozen=True)
class Scenario:
    """A question to the planner."""

    npus: int
    seq: int
    batch: int

    def request(self, model: str, memory: float = 64 * 2**30) -> PlanRequest:
        """Return the question for cards with ``memory`` bytes."""
        card = load_hardware("ascend-910b2").with_figures(hbm_bytes=memory)
        buffer = HCCL_BUFFER_MIB * MIB
        return PlanRequest(
            find_model(model), self.npus, card, self.seq, self.batch, hccl_buffer=buffer, today_only=True
        )


def proposals(request: PlanRequest) -> list[Proposal]:
    """Return what is proposed for DeepSpeed's own engines, whose programs are here."""
    return [each for each in plan(request).proposals if not each.candidate.engine.own]


SCENARIOS = (Scenario(2, 128, 4), Scenario(2, 1024, 4), Scenario(4, 128, 8))


@dataclass(frozen=True)
class Run:
    """One strategy to train, on cards with ``memory_mib``."""

    request: PlanRequest
    candidate: Candidate
    predicted: int
    """Bytes."""
    memory_mib: int
    fits: bool
    """What the planner says at that memory."""


def runs(scenario: Scenario, model: str) -> list[Run]:
    """Return each strategy at the least memory at which the planner takes it, and one control."""
    chosen = []
    request = scenario.request(model)
    for proposal in proposals(request):
        needed = proposal.memory.total + reserve(request, proposal.candidate)
        memory = math.ceil(needed / (1 - request.margin) / MIB)
        again = proposals(scenario.request(model, memory * MIB))
        same = next(each for each in again if each.family == proposal.family)
        chosen.append(Run(request, same.candidate, same.memory.total, memory, True))
    for most in sorted(chosen, key=lambda run: -run.predicted):
        memory = int(most.predicted * (1 - CONTROL_EXCESS) / MIB)
        tight = proposals(scenario.request(model, memory * MIB))
        # With another micro-batch the strategy might do with so little: then it is no control.
        if all(each.family != most.candidate.family for each in tight):
            return [*chosen, Run(request, most.candidate, most.predicted, memory, False)]
    return chosen


def case_of(run: Run) -> Case:
    """Return the model that ``benchmarks/accuracy`` builds for the run."""
    shape, job = run.request.shape, run.candidate.job
    return Case(
        shape.name,
        layers=shape.layers,
        hidden=shape.hidden,
        ffn=shape.ffn,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        vocab=shape.vocab,
        tp=job.parallel.tp,
        pp=job.parallel.pp,
        dp=job.parallel.dp,
        micro_batch=job.micro_batch,
        sequence=job.seq,
        accumulation=job.micro_batches,
        recomputation=job.recomputation,
    )


def configuration(run: Run) -> dict[str, Any]:
    """Return the planner's configuration, its "auto" filled as HF's Trainer fills it."""
    config, _ = ds_config(run.request, run.candidate)
    job = run.candidate.job
    if job.parallel.pp > 1:
        return {**config, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}  # the program's to bring
    flags = TrainingRun(
        run.request.npus,
        bf16=True,
        per_device_train_batch_size=job.micro_batch,
        gradient_accumulation_steps=job.micro_batches,
    )
    return resolve(config, flags).config


def on_rank(fields: dict[str, Any], config: dict[str, Any]) -> int:
    """Train on one rank, which has torch and DeepSpeed; return the most bytes that its allocator held."""
    import deepspeed
    import torch
    from accuracy.models import pipeline_model, plain_model
    from deepspeed.accelerator import get_accelerator

    case = Case(**fields)
    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = pipeline_model(case) if case.pp > 1 else plain_model(case)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=config)
    ids = torch.randint(0, case.vocab, (case.micro_batch, case.sequence)).to(engine.device)
    for _ in range(STEPS):
        if case.pp > 1:
            engine.train_batch(iter([(ids, ids)] * case.accumulation))
            continue
        for _ in range(case.accumulation):
            loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
            engine.backward(loss)
            engine.step()
    get_accelerator().synchronize()
    return get_accelerator().max_memory_reserved()


def train(run: Run, timeout: float) -> tuple[str, int]:
    """Train ``run``; return ``ran``, ``out of memory`` or what failed, and the peak in bytes where it ran.

    Each run has ranks of its own from the start: the simulated machine's memory is settled when torch_npu is
    imported.
    """
    environment = dict(
        rank_environment(),
        PYTHONPATH=str(ROOT / "benchmarks"),
        NPU_SIM_HBM=f"{run.memory_mib}MiB",
        HCCL_BUFFSIZE=str(HCCL_BUFFER_MIB),
    )
    arguments = asdict(case_of(run)), configuration(run)
    try:
        with (
            contextlib.closing(RankPool(environment, IMPORTS)) as pool,
            pool.world(run.request.npus, "hccl") as world,
        ):
            return "ran", max(world.run(on_rank, *arguments, timeout=timeout))
    except (RankFailure, HarnessError) as error:
        said = str(error)
        if any(words in said for words in OUT_OF_MEMORY):
            return "out of memory", 0
        return said.strip().splitlines()[-1], 0


def describe(run: Run) -> str:
    """Return the run in one line."""
    job = run.candidate.job
    verdict = "fits" if run.fits else "does not fit"
    steps = f"{job.micro_batch} x {job.micro_batches}, {job.recomputation:<4} recomputed"
    return (
        f"{run.request.npus} NPUs  seq {job.seq:<5}{run.memory_mib:>5} {run.predicted // MIB:>5}  "
        f"{verdict:<13}{run.candidate.family:<28}{steps}"
    )


def main(argv: list[str] | None = None) -> int:
    """Train every strategy; return 0 if all that should fit did and no control did."""
    numbers = range(1, len(SCENARIOS) + 1)
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--list", action="store_true", help="only print what would be run")
    parser.add_argument("--model", default="llama-100m", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--scenario", type=int, choices=numbers, nargs="*", help="default: all")
    parser.add_argument("--family", metavar="NAME", help="only this strategy (default: all)")
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="seconds a run may take")
    args = parser.parse_args(argv)
    print(f"{args.model}; MiB an NPU: what there is, what is predicted")
    chosen = [run for number in args.scenario or numbers for run in runs(SCENARIOS[number - 1], args.model)]
    chosen = [run for run in chosen if args.family in (None, run.candidate.family)]
    if args.list:
        print("\n".join(describe(run) for run in chosen))
        return 0
    reason = why_no_npu()
    if reason:
        parser.error(reason)
    wrong = 0
    for run in chosen:
        started = time.perf_counter()
        outcome, peak = train(run, args.timeout)
        right = outcome == ("ran" if run.fits else "out of memory")
        wrong += not right
        held = f", {peak // MIB} MiB held" if peak else ""
        took = f"({time.perf_counter() - started:.0f} s){'' if right else '  <-- WRONG'}"
        print(f"{describe(run)}: {outcome}{held} {took}", flush=True)
    fitting = sum(run.fits for run in chosen)
    print(f"{fitting} proposals and {len(chosen) - fitting} controls: {wrong} wrong (goal 0)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
