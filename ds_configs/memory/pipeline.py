"""Micro-batches whose activations a pipeline stage holds at once, for each schedule."""

from __future__ import annotations

from ds_configs.memory.job import MemoryJob


def in_flight(job: MemoryJob, stage: int) -> float:
    """Return how many micro-batches' activations of its layers ``stage`` holds at its peak.

    GPipe §2.3; 1F1B: PipeDream-Flush and Narayanan 2021 (arXiv 2104.04473) §2.2; interleaved: its §2.2.2;
    ZB-H1 and ZB-V: arXiv 2401.10241 and 2405.15362; DualPipeV: DualPipe. With v chunks a rank, a chunk
    counts 1/v.
    """
    p, m, v = job.parallel.pp, job.accumulation, job.chunks
    if p == 1:
        return 1.0
    if job.schedule == "gpipe":
        return float(m)
    if job.schedule == "1f1b":
        return float(min(m, p - stage))
    if job.schedule == "interleaved":
        warmup = 2 * (p - stage - 1) + (v - 1) * p + 1
        return min(m * v, warmup) / v
    if job.schedule == "dualpipev":
        return min(m, p + 0.5)
    return float(min(m, p))
