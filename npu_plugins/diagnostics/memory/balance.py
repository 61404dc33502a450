"""Which ranks take more memory than the others, and what for. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npu_plugins.diagnostics.memory.rank import ACTIVATIONS, FRAGMENTS, RankMemory

SHARE = 0.1
"""Ranks that differ by less of the largest one's memory are balanced."""
LEAST = 64 << 20
"""Bytes below which no difference is worth a word."""
OTHERS = "runtime, HCCL and other processes"
MODEL = "the model's parameters, gradients and optimizer states"
MENDS = {
    MODEL: "move layers to other stages: pipeline.partition of ds_config, or fewer layers beside "
    "embedding and head",
    ACTIVATIONS: "the first stages of a pipeline keep more micro-batches: recompute there, use fewer "
    "micro-batches in flight (--pipeline_schedule), or give rank 0 no work besides",
    FRAGMENTS: "set PYTORCH_NPU_ALLOC_CONF=expandable_segments:True, or pad batches to few lengths",
    OTHERS: "`npu-smi info` names processes that are not of this job: end them, or choose other devices with "
    "ASCEND_RT_VISIBLE_DEVICES; HCCL takes HCCL_BUFFSIZE for each group",
}


@dataclass(frozen=True)
class Imbalance:
    """A rank that takes more than most, and mostly what for."""

    rank: int
    bytes: int
    """More than the rank that takes least."""
    cause: str
    """A key of `MENDS`."""
    by_cause: int
    """Of these bytes."""
    holds: str
    """Of the model."""
    compared: int
    """The rank that takes least."""

    def __str__(self) -> str:
        """Return it as a sentence with its mend."""
        of = f" ({self.holds})" if self.holds and self.cause == MODEL else ""
        return (
            f"rank {self.rank} takes {gib(self.bytes)} more than rank {self.compared}, {gib(self.by_cause)} "
            f"of it for {self.cause}{of}; {MENDS[self.cause]}"
        )


def gib(size: float) -> str:
    """Return a size in GB as the documents count them, 1024³ bytes; small ones in MB."""
    return f"{size / (1 << 30):.1f}GB" if size >= 1 << 30 else f"{size / (1 << 20):.1f}MB"


def by_others(ranks: Sequence[RankMemory]) -> dict[int, int]:
    """Return by rank the bytes of its device that no rank of the job has reserved.

    Some of it is the driver's and the runtime's own, which every rank has, and HCCL's buffers, which ranks in
    more groups have more of; what is more than that is other processes'.
    """
    own: dict[tuple[str, str], int] = defaultdict(int)
    for each in ranks:
        own[each.host, each.device] += each.reserved
    return {each.rank: max(0, each.used - own[each.host, each.device]) for each in ranks}


def imbalances(
    ranks: Sequence[RankMemory], *, share: float = SHARE, least: int = LEAST
) -> tuple[Imbalance, ...]:
    """Return the ranks that take more than the one that takes least, the largest first.

    Args:
        ranks: of the job.
        share: of the largest rank's memory, above which a difference counts.
        least: bytes above which it counts.
    """
    if len(ranks) < 2:
        return ()
    others = {} if all(each.device == "cpu" for each in ranks) else by_others(ranks)
    parts = {each.rank: {**each.parts(), OTHERS: others.get(each.rank, 0)} for each in ranks}
    sums = {rank: sum(each.values()) for rank, each in parts.items()}
    compared = min(sums, key=lambda rank: (sums[rank], rank))
    limit = max(least, share * max(sums.values()))
    found = [
        _imbalance(each, parts, compared, sums[each.rank] - sums[compared])
        for each in ranks
        if sums[each.rank] - sums[compared] >= limit
    ]
    return tuple(sorted(found, key=lambda each: -each.bytes))


def _imbalance(
    own: RankMemory, parts: Mapping[int, Mapping[str, int]], compared: int, more: int
) -> Imbalance:
    differences = {name: size - parts[compared][name] for name, size in parts[own.rank].items()}
    # Parameters, gradients and optimizer states differ together, for one reason: where the layers are.
    model = sum(max(0, differences[name]) for name in ("parameters", "gradients", "optimizer"))
    rest = {name: differences[name] for name in (ACTIVATIONS, FRAGMENTS, OTHERS)}
    cause = max(rest, key=lambda name: rest[name])
    if model >= rest[cause]:
        return Imbalance(own.rank, more, MODEL, model, own.holds, compared)
    return Imbalance(own.rank, more, cause, rest[cause], own.holds, compared)
