"""What a pipeline stage holds: micro-batches in flight for each schedule, and DeepSpeed's buffers."""

from __future__ import annotations

from dataclasses import dataclass

from ds_configs.memory.job import MemoryJob


@dataclass(frozen=True)
class PipelineBuffers:
    """What DeepSpeed's PipelineEngine holds beside the layers (pipe/engine.py), in bytes."""

    resident: int
    """Receive buffers for activations and for their gradients, from the first batch on."""
    each: int
    """For each micro-batch in flight: the stage's input and output."""
    logits: int
    """The previous micro-batch's logits: the last stage frees an output slot only when it fills it anew."""


def pipeline_buffers(job: MemoryJob, stage: int) -> PipelineBuffers:
    """Return the buffers of pipeline stage ``stage``; a sequence-parallel stage sends its part only."""
    p = job.parallel.pp
    if p == 1:
        return PipelineBuffers(0, 0, 0)
    first, last = stage == 0, stage == p - 1
    split = job.parallel.tp if job.parallel.sequence_parallel else 1
    hidden = job.micro_batch * job.sequence * job.element * job.shape.hidden // split
    logits = job.micro_batch * job.sequence * job.element * job.shape.vocab
    ends = (not first) + (not last)
    return PipelineBuffers(
        resident=ends * hidden,
        each=ends * hidden,
        logits=logits if last and job.accumulation > 1 and job.kernels == "transformers" else 0,
    )


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
