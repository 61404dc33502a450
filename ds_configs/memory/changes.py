"""Changes to a job that save memory, what each costs, and the search for the cheapest ones that make it
fit."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from ds_configs.errors import DsConfigError
from ds_configs.memory.estimate import estimate
from ds_configs.memory.job import MemoryJob
from ds_configs.parallel import ParallelConfig

MOST_JOBS = 4000
"""Jobs that a search looks at before it gives up."""
SMALL_BUCKET = 50_000_000


@dataclass(frozen=True)
class Change:
    """One step away from a job."""

    what: str
    """What to change, in words."""
    price: str
    """What it costs, in words."""
    cost: float
    """Its price in per cent of the step's time, as far as one number can say it: the search adds these up."""
    job: MemoryJob

    @property
    def kind(self) -> str:
        """What is changed, whatever to: "tp 2" and "tp 4" are of one kind."""
        return self.what.rstrip("0123456789").split(",")[0].rstrip(" 0123456789")


@dataclass(frozen=True)
class Way:
    """Changes that together make a job fit."""

    changes: tuple[Change, ...]
    job: MemoryJob

    @property
    def cost(self) -> float:
        """Sum of the changes' costs."""
        return sum(change.cost for change in self.changes)

    @property
    def settled(self) -> tuple[Change, ...]:
        """The last change of each kind: where tp went to 2 and on to 4, only that it is 4."""
        return tuple({change.kind: change for change in self.changes}.values())


def cheapest_ways(job: MemoryJob, capacity: int, wanted: int = 3) -> list[Way]:
    """Return up to ``wanted`` sets of changes, cheapest first, with which ``job`` fits ``capacity`` bytes.

    Dijkstra's search over single changes; a way that only adds to a cheaper one is left out. The world size
    and the global batch stay the same.
    """
    serial = count()
    queue: list[tuple[float, int, tuple[Change, ...], MemoryJob]] = [(0.0, next(serial), (), job)]
    seen: set[MemoryJob] = set()
    found: list[Way] = []
    looked = 0
    while queue and len(found) < wanted and looked < MOST_JOBS:
        cost, _, path, here = heapq.heappop(queue)
        if here in seen:
            continue
        seen.add(here)
        looked += 1
        if estimate(here).fits(capacity):
            if path and not any(_includes(path, way.changes) for way in found):
                found.append(Way(path, here))
            continue
        for change in single_changes(here):
            if change.job not in seen:
                entry = (cost + change.cost, next(serial), (*path, change), change.job)
                heapq.heappush(queue, entry)
    return found


def _includes(path: tuple[Change, ...], smaller: tuple[Change, ...]) -> bool:
    return {change.kind for change in smaller} <= {change.kind for change in path}


def single_changes(job: MemoryJob) -> Iterator[Change]:
    """Yield every change that is possible from ``job``."""
    for maker in (_buckets, _attention, _micro_batch, _recomputation, _stage, _sequence, _degrees, _offload):
        yield from maker(job)


def _try(make: Callable[[], MemoryJob], what: str, price: str, cost: float) -> Iterator[Change]:
    try:
        yield Change(what, price, cost, make())
    except DsConfigError:
        return


def _buckets(job: MemoryJob) -> Iterator[Change]:
    buckets = job.buckets
    if job.stage and buckets.reduce > SMALL_BUCKET:
        smaller = replace(buckets, reduce=SMALL_BUCKET)
        what = f"reduce_bucket_size {SMALL_BUCKET:.0e}".replace("e+0", "e")
        yield from _try(lambda: replace(job, buckets=smaller), what, "more and smaller collectives", 1)
    if job.stage in (1, 2) and buckets.overlap_comm:
        alone = replace(buckets, overlap_comm=False)
        yield from _try(
            lambda: replace(job, buckets=alone), "overlap_comm false", "gradient reduction is not hidden", 4
        )
    if job.stage == 3 and max(buckets.reuse, buckets.max_live) > 2 * SMALL_BUCKET:
        short = replace(buckets, reuse=2 * SMALL_BUCKET, max_live=2 * SMALL_BUCKET)
        yield from _try(
            lambda: replace(job, buckets=short),
            "stage3_max_live_parameters and stage3_max_reuse_distance 1e8",
            "parameters are gathered again in the backward pass",
            3,
        )


def _attention(job: MemoryJob) -> Iterator[Change]:
    if job.attention == "eager":
        yield from _try(
            lambda: replace(job, attention="flash"), "flash attention (attn_implementation sdpa)",
            "none: it is faster too", 0,
        )  # fmt: skip


def _micro_batch(job: MemoryJob) -> Iterator[Change]:
    if job.micro_batch > 1 and job.micro_batch % 2 == 0:
        half = replace(job, micro_batch=job.micro_batch // 2, accumulation=job.accumulation * 2)
        yield Change(
            f"micro-batch {half.micro_batch}, accumulation {half.accumulation}",
            "smaller matrices use the cube units less well", 3, half,
        )  # fmt: skip


def _recomputation(job: MemoryJob) -> Iterator[Change]:
    if job.recomputation == "none" and job.attention == "eager" and job.kernels == "megatron":
        yield from _try(
            lambda: replace(job, recomputation="selective"), "selective recomputation",
            "attention's core runs twice: a few per cent (Korthikanti 2022 §5)", 4,
        )  # fmt: skip
    if job.recomputation != "full":
        yield from _try(
            lambda: replace(job, recomputation="full"), "full recomputation (gradient checkpointing)",
            "one more forward pass: a third more compute", 33,
        )  # fmt: skip


def _stage(job: MemoryJob) -> Iterator[Change]:
    if job.parallel.dp == 1 or job.stage == 3:
        return
    price = (
        "parameters are gathered in both passes: half as much communication again (ZeRO §7)"
        if job.stage == 2
        else "none in volume (ZeRO §7); the states are reduced and gathered instead of all-reduced"
    )
    cost = 8 if job.stage == 2 else 1
    yield from _try(lambda: replace(job, stage=job.stage + 1), f"ZeRO stage {job.stage + 1}", price, cost)


def _sequence(job: MemoryJob) -> Iterator[Change]:
    if job.parallel.tp > 1 and not job.parallel.sequence_parallel and job.kernels == "megatron":
        parallel = replace(job.parallel, sequence_parallel=True)
        yield from _try(
            lambda: replace(job, parallel=parallel), "sequence parallel",
            "none in volume (Korthikanti 2022 §4.2.2)", 1,
        )  # fmt: skip


def _degrees(job: MemoryJob) -> Iterator[Change]:
    parallel, shape = job.parallel, job.shape
    if parallel.dp % 2:
        return
    if shape.heads % (2 * parallel.tp) == 0 and shape.kv_heads % (2 * parallel.tp) == 0 and parallel.tp < 8:
        more = _halve_dp(parallel, 2 * parallel.tp, parallel.pp)
        yield from _try(
            lambda: replace(job, parallel=more, accumulation=2 * job.accumulation), f"tp {more.tp}",
            "two all-reduces a layer and pass, over the fast links only", 15,
        )  # fmt: skip
    if shape.layers % (2 * parallel.pp) == 0 and job.stage <= 1:
        deeper = _halve_dp(parallel, parallel.tp, 2 * parallel.pp)
        yield from _try(
            lambda: replace(job, parallel=deeper, accumulation=2 * job.accumulation), f"pp {deeper.pp}",
            f"a bubble of (p − 1)/m = {deeper.pp - 1}/{2 * job.accumulation} of the step", 18,
        )  # fmt: skip


def _halve_dp(parallel: ParallelConfig, tp: int, pp: int) -> ParallelConfig:
    dp = parallel.dp // 2
    return replace(parallel, tp=tp, pp=pp, dp=dp, ep=parallel.ep if dp % parallel.ep == 0 else 1)


def _offload(job: MemoryJob) -> Iterator[Change]:
    if job.offload_optimizer == "none" and job.stage:
        yield from _try(
            lambda: replace(job, offload_optimizer="cpu"), "offload_optimizer to cpu",
            "the host steps: gradients down and parameters up the PCIe bus, once a step", 60,
        )  # fmt: skip
    if job.offload_param == "none" and job.stage == 3:
        yield from _try(
            lambda: replace(job, offload_param="cpu"), "offload_param to cpu",
            "parameters come up the PCIe bus in every pass", 120,
        )  # fmt: skip
