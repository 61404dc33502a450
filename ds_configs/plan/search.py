"""The search: time every candidate, then ask the memory model about the fastest first.

The memory model is the dearer of the two. Candidates that differ only in micro-batch and recomputation form a
group: if not even its leanest members fit, the others are not asked about.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from ds_configs.errors import DsConfigError
from ds_configs.memory import MemoryEstimate, estimate
from ds_configs.plan.candidates import FAMILIES, Candidate, candidates
from ds_configs.plan.config import memory_job, reserve
from ds_configs.plan.request import PlanRequest
from ds_configs.throughput import StepTime, step_time

TOLERANCE = 0.03
"""Part of a step's time below which two proposals are equal: the throughput model's own median error."""


@dataclass(frozen=True)
class Proposal:
    """A candidate with its predicted step time and memory."""

    candidate: Candidate
    time: StepTime
    memory: MemoryEstimate

    @property
    def seconds(self) -> float:
        """Predicted seconds of a step."""
        return self.time.total

    @property
    def family(self) -> str:
        """The strategy."""
        return self.candidate.family


@dataclass(frozen=True)
class Miss:
    """The candidate of a family that comes nearest to fitting, and does not."""

    candidate: Candidate
    memory: MemoryEstimate
    excess: int
    """Bytes beyond what may be used, on the card or else on the host."""
    where: str
    """``NPU`` or ``host``."""

    @property
    def term(self) -> tuple[str, int]:
        """Name and bytes of the largest term."""
        terms = self.memory.terms if self.where == "NPU" else self.memory.worst.host_terms
        return max(terms.items(), key=lambda item: item[1])


@dataclass(frozen=True)
class Plan:
    """What came out: the proposal, the best of every other family, and those that do not fit."""

    request: PlanRequest
    proposals: tuple[Proposal, ...]
    """The best of each family that fits; the first is proposed, the others follow by time."""
    misses: tuple[Miss, ...]
    """The nearest miss of each family that does not fit."""
    impossible: tuple[str, ...]
    """Families without any candidate for these cards and this batch."""
    looked_at: int
    """Candidates timed."""

    @property
    def winner(self) -> Proposal | None:
        """The proposal, if anything fits."""
        return self.proposals[0] if self.proposals else None

    @property
    def runs_today(self) -> Proposal | None:
        """The best proposal that needs no engine still to come."""
        return next((each for each in self.proposals if each.candidate.engine.today), None)


def plan(request: PlanRequest) -> Plan:
    """Return the plan for ``request``: strategies that fit, by predicted step time.

    Raises:
        DsConfigError: no strategy divides the cards, the model and the batch, whatever the memory.
    """
    families: dict[_Kind, list[tuple[float, int, Candidate, StepTime]]] = defaultdict(list)
    count = 0
    for candidate in candidates(request):
        time = step_time(candidate.job, request.hardware)
        families[_kind(candidate)].append((time.total, count, candidate, time))
        count += 1
    if not count:
        raise DsConfigError(
            f"no strategy divides {request.npus} NPUs, {request.shape.name} and a global batch of "
            f"{request.global_batch}; use a batch that is a multiple of {request.npus}"
        )
    fits, misses = [], []
    for kind in sorted(families, key=_rank):
        proposal, miss = _best_of(request, sorted(families[kind], key=lambda each: each[:2]))
        if proposal:
            fits.append(proposal)
        elif miss:
            misses.append(miss)
    kinds = {kind.family for kind in families}
    return Plan(
        request,
        tuple(_ordered(fits)),
        tuple(misses),
        tuple(name for name in FAMILIES if name not in kinds and _meant(request, name)),
        count,
    )


class _Kind(NamedTuple):
    """A family, split by whose engine runs it and whether today, so that the best of each is never hidden."""

    family: str
    own: bool
    today: bool


def _kind(candidate: Candidate) -> _Kind:
    return _Kind(candidate.family, candidate.engine.own, candidate.engine.today)


def _rank(kind: _Kind) -> tuple[bool, bool, int]:
    """Put first what runs today, and of that what DeepSpeed runs by itself."""
    return not kind.today, kind.own, FAMILIES.index(kind.family)


def _meant(request: PlanRequest, family: str) -> bool:
    """Whether ``family`` is worth a word: experts only for a model that has some."""
    return request.shape.moe is not None or family != "expert parallel"


def _ordered(fits: list[Proposal]) -> list[Proposal]:
    """Put the proposed one first: the simplest of those whose times do not differ."""
    if not fits:
        return []
    fastest = min(each.seconds for each in fits)
    first = next(each for each in fits if each.seconds <= fastest * (1 + TOLERANCE))
    return [first, *sorted((each for each in fits if each is not first), key=lambda each: each.seconds)]


def _best_of(
    request: PlanRequest, timed: list[tuple[float, int, Candidate, StepTime]]
) -> tuple[Proposal | None, Miss | None]:
    """Return the fastest of a family that fits, or the nearest miss."""
    groups: dict[tuple[object, ...], list[Candidate]] = defaultdict(list)
    for _, _, candidate, _ in timed:
        groups[candidate.group].append(candidate)
    hopeless: dict[tuple[object, ...], bool] = {}
    nearest: Miss | None = None
    for _, _, candidate, time in timed:
        group = candidate.group
        if group not in hopeless:
            misses = [_miss(request, each) for each in _leanest(groups[group])]
            hopeless[group] = all(misses)
            for miss in misses:
                nearest = _nearer(nearest, miss)
        if hopeless[group]:
            continue
        miss = _miss(request, candidate)
        if miss is None:
            return Proposal(candidate, time, estimate(memory_job(request, candidate))), None
        nearest = _nearer(nearest, miss)
    return None, nearest


def _leanest(group: list[Candidate]) -> list[Candidate]:
    """Return the members of which one fits if any does.

    Activations grow with the micro-batch; but a step of one micro-batch carries no gradients from one to the
    next. Recomputation saves activations; but with few layers a stage its working layer is more than what it
    saves.
    """
    smallest = min(each.job.micro_batch for each in group)
    return [each for each in group if each.job.micro_batch == smallest or each.job.micro_batches == 1]


def _miss(request: PlanRequest, candidate: Candidate) -> Miss | None:
    """Return by how much ``candidate`` does not fit, or None where it does."""
    memory = estimate(memory_job(request, candidate))
    excess = memory.total + reserve(request, candidate) - request.capacity
    if excess > 0:
        return Miss(candidate, memory, excess, "NPU")
    over = memory.host - int(request.hardware.host_bytes * (1 - request.margin))
    return Miss(candidate, memory, over, "host") if over > 0 else None


def _nearer(one: Miss | None, other: Miss | None) -> Miss | None:
    if one is None or other is None:
        return one or other
    return other if other.excess < one.excess else one
