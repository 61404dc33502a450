"""Every job worth looking at: divisors of the cards, of the batch, and what each engine offers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

from ds_configs.parallel import ParallelConfig
from ds_configs.plan.config import ELEMENT_BYTES, overlaps
from ds_configs.plan.engines import Engine, engines_for
from ds_configs.plan.request import PlanRequest
from ds_configs.throughput import Offload, Recomputation, TrainingJob

MICRO_BATCHES = (1, 2, 4, 8, 16)
"""Larger ones gain nothing that matmuls of 16 sequences do not already have."""
CHUNKS = (2, 4)
"""Chunks a rank under the interleaved schedule."""
RECOMPUTATIONS: tuple[Recomputation, ...] = ("none", "full")
"""HF and DeepSpeed recompute whole layers or nothing."""
HOST: tuple[tuple[Offload, Offload], ...] = (
    ("cpu", "none"),
    ("cpu", "cpu"),
    ("nvme", "cpu"),
    ("nvme", "nvme"),
)
"""Where optimizer state and parameters go, from little to much."""


@dataclass(frozen=True)
class Candidate:
    """A job, who runs it, and which family of strategies it belongs to."""

    job: TrainingJob
    engine: Engine

    @property
    def family(self) -> str:
        """The strategy in the documents' words."""
        job, parallel = self.job, self.job.parallel
        if parallel.ep > 1:
            return "expert parallel"
        if parallel.tp > 1 and parallel.pp > 1:
            return "tensor x pipeline parallel"
        if parallel.tp > 1:
            return "tensor parallel"
        if parallel.pp > 1:
            return "pipeline parallel"
        if job.offload_param != "none":
            return "ZeRO-3 + parameter offload"
        if job.offload_optimizer != "none":
            return f"ZeRO-{job.stage} + optimizer offload"
        return f"ZeRO-{job.stage}" if job.stage else "data parallel"

    @property
    def group(self) -> tuple[object, ...]:
        """What it shares with candidates that differ only in micro-batch and recomputation."""
        job = self.job
        return (
            job.parallel,
            job.stage,
            job.offload_optimizer,
            job.offload_param,
            job.schedule,
            job.virtual_stages,
            self.engine.name,
        )


FAMILIES = (
    "data parallel",
    "ZeRO-1",
    "ZeRO-2",
    "ZeRO-3",
    "ZeRO-1 + optimizer offload",
    "ZeRO-2 + optimizer offload",
    "ZeRO-3 + optimizer offload",
    "ZeRO-3 + parameter offload",
    "tensor parallel",
    "pipeline parallel",
    "tensor x pipeline parallel",
    "expert parallel",
)
"""From the simplest to the most involved: where times do not differ, the earlier one is proposed."""


def divisors(number: int) -> list[int]:
    """Return the divisors of ``number``, ascending."""
    small = [each for each in range(1, isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def candidates(request: PlanRequest) -> Iterator[Candidate]:
    """Yield every candidate, without regard to time or memory.

    Tensor parallelism stays within the fast links: over the network each layer would wait for it.
    """
    for parallel in degrees(request):
        if request.global_batch % parallel.dp:
            continue
        for engine in engines_for(request.shape, parallel):
            if request.today_only and not engine.today:
                continue
            yield from _of_engine(request, parallel, engine)


def degrees(request: PlanRequest) -> Iterator[ParallelConfig]:
    """Yield the divisions of the cards over tp, pp, dp and ep."""
    shape, widest = request.shape, min(request.hardware.fast_domain, request.hardware.node_size)
    for tp in divisors(request.npus):
        if tp > widest:
            break
        for pp in divisors(request.npus // tp):
            if pp > shape.layers:
                break
            dp = request.npus // (tp * pp)
            yield ParallelConfig(tp, pp, dp)
            if shape.moe is not None and tp == pp == 1:
                for ep in divisors(dp)[1:]:
                    if shape.moe.experts % ep == 0:
                        yield ParallelConfig(tp, pp, dp, ep)


def _of_engine(request: PlanRequest, parallel: ParallelConfig, engine: Engine) -> Iterator[Candidate]:
    if engine.sequence_parallel and parallel.tp > 1:
        parallel = ParallelConfig(parallel.tp, parallel.pp, parallel.dp, parallel.ep, True)
    share = request.global_batch // parallel.dp
    size = ELEMENT_BYTES[request.dtype]
    for stage, offload in _zero_choices(parallel, engine):
        for schedule, chunks in _schedules(request, parallel, engine):
            for micro_batch in MICRO_BATCHES:
                if share % micro_batch or not _pipelined(schedule, share // micro_batch, parallel.pp):
                    continue
                for recomputation in RECOMPUTATIONS if schedule != "zb-v" else RECOMPUTATIONS[:1]:
                    job = TrainingJob(
                        request.shape,
                        parallel,
                        seq=request.seq,
                        micro_batch=micro_batch,
                        global_batch=request.global_batch,
                        stage=stage,
                        recomputation=recomputation,
                        attention=request.attention,
                        schedule=schedule,  # type: ignore[arg-type]
                        virtual_stages=chunks,
                        vocab_parallel=engine.vocab_parallel or not request.shape.tied_embeddings,
                        overlap_dp=overlaps(stage, request.dtype, request.shape.hidden),
                        element_bytes=size,
                        gradient_bytes=size,
                        offload_optimizer=offload[0],
                        offload_param=offload[1],
                    )
                    yield Candidate(job, engine)


def _zero_choices(parallel: ParallelConfig, engine: Engine) -> Iterator[tuple[int, tuple[Offload, Offload]]]:
    """Yield stages and offload. With one replica a stage divides nothing, but offload still needs one."""
    none: tuple[Offload, Offload] = ("none", "none")
    for stage in engine.stages:
        if stage == 0 or parallel.dp > 1:
            yield stage, none
        if engine.offload and stage:
            for offload in HOST if stage == 3 else HOST[:1]:
                yield stage, offload


def _schedules(request: PlanRequest, parallel: ParallelConfig, engine: Engine) -> Iterator[tuple[str, int]]:
    if parallel.pp == 1:
        yield "1f1b", 1
        return
    for schedule in engine.schedules:
        if schedule == "interleaved":
            for chunks in CHUNKS:
                if request.shape.layers % (parallel.pp * chunks) == 0:
                    yield schedule, chunks
        elif schedule != "zb-v" or 2 * parallel.pp <= request.shape.layers:
            yield schedule, 1


def _pipelined(schedule: str, micro_batches: int, stages: int) -> bool:
    """Interleaving runs whole rounds of as many micro-batches as stages; ZB-V fills 2p chunks first.

    ZB-V also wants a forward pass as long as each half of the backward pass, so that it goes without
    recomputation.
    """
    if schedule == "interleaved":
        return micro_batches % stages == 0
    return schedule != "zb-v" or micro_batches >= 2 * stages
