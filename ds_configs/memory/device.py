"""Device memory outside of tensors: the caching allocator's slack and HCCL's buffers."""

from __future__ import annotations

from ds_configs.memory.job import MemoryJob

MIB = 1 << 20
SMALL_SEGMENT = 2 * MIB
"""Segments that tensors below 1 MiB are cut from (torch_npu's caching allocator, kSmallBuffer)."""
LARGE_SEGMENT = 20 * MIB
"""Segments that tensors from 1 to 10 MiB are cut from (kLargeBuffer)."""


def allocator_slack(allocated: int) -> int:
    """Return reserved minus allocated memory: a partly used segment of each kind."""
    return min(allocated, SMALL_SEGMENT + LARGE_SEGMENT)


def hccl_bytes(job: MemoryJob) -> int:
    """Return what HCCL's communicators take: two buffers of HCCL_BUFFSIZE each, for sending and receiving.

    Source: CANN's documentation of HCCL_BUFFSIZE (default 200 MB a buffer; "2 × HCCL_BUFFSIZE" a
    communicator). Communicators: the world's, and one for each axis of more than one rank; a pipeline stage
    has one for each neighbour.
    """
    parallel = job.parallel
    if parallel.world_size == 1:
        return 0
    count = 1 + (parallel.dp > 1) + (parallel.tp > 1) + 2 * (parallel.ep > 1)
    count += min(2, parallel.pp - 1)
    return 2 * job.hccl_buffer * count
