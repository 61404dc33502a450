"""Sizes of ZeRO's buckets for the links that were measured.

A collective of S bytes takes α + S/β seconds: Hockney's model, "The communication challenge for MPP",
Parallel Computing 20 (1994) 389-398, in whose terms αβ is the length that reaches half the bandwidth.

**Reduction** runs beside the backward pass but for its last bucket, which nothing hides. G bytes of gradients
in buckets of S take G/S·α + G/β and, at the end, S/β. The derivative by S is zero at S = √(αβG): smaller
buckets pay more latency, larger ones wait longer for the last.

**Gathering** has no such end: S = αβ·e/(1−e) reaches the part e of the bandwidth; more only takes memory.

Read in DeepSpeed 0.19.8: stages 1 and 2 all-reduce buckets (stage_1_and_2.py, allreduce_bucket), stage 3
scatters them (stage3.py, reduce_scatter_coalesced); with overlap_comm there are two. allgather_bucket_size
decides something only for a backend without all_gather_into_tensor (runtime/utils.py, all_gather_dp_groups).
"""

from __future__ import annotations

import math

from ds_configs.errors import DsConfigError
from ds_configs.measured_links import LinkSpeed, MeasuredLinks

REACHED = 0.95
"""The part of the bandwidth that gathers shall reach."""
HCCL_BUFFER_BYTES = 200 * 10**6
"""HCCL moves a message through a buffer of HCCL_BUFFSIZE, 200 MB unless set, and slows down beyond it (CANN
8.5, HCCL user guide, HCCL_BUFFSIZE: keep the buffer above the data size)."""
UNIT = 1024
"""Sizes are multiples of it; DeepSpeed wants even ones."""
STAGES = (1, 2, 3)


def reduce_bytes(speed: LinkSpeed, gradient_bytes: float) -> float:
    """Return √(αβG), at most G: the bucket with which the reduction of all gradients ends first."""
    return min(math.sqrt(speed.latency * speed.bandwidth * gradient_bytes), gradient_bytes)


def gather_bytes(speed: LinkSpeed, reached: float = REACHED) -> float:
    """Return αβ·e/(1−e): the smallest message that reaches the part `reached` of the bandwidth."""
    return speed.latency * speed.bandwidth * reached / (1 - reached)


def bucket_sizes(
    links: MeasuredLinks,
    *,
    stage: int,
    parameters: int,
    element_bytes: int,
    overlap: bool = True,
    memory_bytes: int | None = None,
) -> dict[str, int]:
    """Return the keys of ``zero_optimization`` that say how large buckets are, in elements.

    Args:
        links: measured along ``dp``, or over all ranks.
        stage: of ZeRO, 1 to 3.
        parameters: that each rank holds the gradients of; with tp and pp a part of the model's.
        element_bytes: of a gradient.
        overlap: whether DeepSpeed overlaps reduction with the backward pass, and holds two buckets.
        memory_bytes: that all buckets of a rank may take; None: HCCL's buffer alone bounds each.

    Raises:
        DsConfigError: a stage without buckets, no parameters, no memory, or what is needed was not measured.
    """
    if stage not in STAGES:
        raise DsConfigError(f"stage {stage} has no buckets to choose; take ZeRO stage 1, 2 or 3")
    if parameters < 1:
        raise DsConfigError(f"{parameters} parameters need no buckets; give those of the model")
    reducing = links.speed("all_reduce" if stage < 3 else "reduce_scatter", "dp", "world")
    gathering = links.speed("all_gather", "dp", "world")
    if not (reducing.latency and gathering.latency):
        raise DsConfigError(
            f"{links.source} tells no latency, on which the size of a bucket depends; measure smaller "
            "messages too, from 8 bytes on"
        )
    buckets = (2 if overlap else 1) + (stage == 3)
    most = HCCL_BUFFER_BYTES
    if memory_bytes is not None:
        most = min(most, memory_bytes // buckets)
        least = UNIT * element_bytes
        if most < least:
            raise DsConfigError(
                f"{memory_bytes} bytes are no room for {buckets} buckets; give {buckets * least} or more"
            )
    reduce = reduce_bytes(reducing, parameters * element_bytes)
    gather = gather_bytes(gathering)
    gather_key = "allgather_bucket_size" if stage < 3 else "stage3_prefetch_bucket_size"
    return {
        "reduce_bucket_size": _elements(min(reduce, most), element_bytes),
        gather_key: _elements(min(gather, most), element_bytes),
    }


def _elements(size: float, element_bytes: int) -> int:
    return max(1, int(size / element_bytes) // UNIT) * UNIT
