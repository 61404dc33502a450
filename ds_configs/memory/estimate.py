"""The memory of a training job: for each pipeline stage the terms at the moment that needs most."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ds_configs.memory.activations import backward_bytes, layer_bytes
from ds_configs.memory.device import allocator_slack, hccl_bytes
from ds_configs.memory.head import (
    embedding_bytes,
    final_norm_bytes,
    head_bytes,
    logits_bytes,
    loss_peak_bytes,
)
from ds_configs.memory.job import MemoryJob
from ds_configs.memory.pipeline import in_flight, pipeline_buffers
from ds_configs.memory.rank import RankPart, rank_part
from ds_configs.memory.result import MemoryEstimate, StageEstimate
from ds_configs.memory.wrappers import StateMemory, model_states, state_memory

Terms = Mapping[str, int]


def estimate(job: MemoryJob) -> MemoryEstimate:
    """Return the device and host memory of each pipeline stage's rank, by term, at its peak.

    Model states follow the ZeRO paper (arXiv 1910.02054 §3) and DeepSpeed 0.19.8's own buffers, activations
    Korthikanti et al. 2022 (arXiv 2205.05198 §4) or, for transformers' unfused layers, what autograd keeps.
    """
    return MemoryEstimate(tuple(_stage(job, stage) for stage in range(job.parallel.pp)))


def _stage(job: MemoryJob, stage: int) -> StageEstimate:
    parallel = job.parallel
    part = rank_part(job.shape, parallel.tp, parallel.ep, parallel.pp, stage, job.kernels == "megatron")
    states = state_memory(job, part)
    moments = _moments(job, part, states, stage)
    name = max(moments, key=lambda moment: sum(moments[moment].values()))
    terms = {term: size for term, size in moments[name].items() if size}
    terms["allocator slack"] = allocator_slack(sum(terms.values()))
    terms["HCCL buffers"] = hccl_bytes(job)
    return StageEstimate(
        stage=stage,
        moment=name,
        terms=MappingProxyType(terms),
        host_terms=MappingProxyType(dict(states.host)),
        moments=moments,
        model_states=model_states(job, part),
    )


def _moments(job: MemoryJob, part: RankPart, states: StateMemory, stage: int) -> dict[str, Terms]:
    """Return the terms at each moment of the step that can be its peak."""
    kept, working = _activations(job, part, stage)
    pipe = pipeline_buffers(job, stage)
    buffers = {"pipeline buffers": pipe.resident + round(in_flight(job, stage) * pipe.each) + pipe.logits}
    idle = {"pipeline buffers": pipe.resident + pipe.logits}
    earlier = states.carried if job.accumulation > 1 else {}
    forward = {"gathered parameters": states.gathered + states.flat_forward}
    gathered = {"gathered parameters": states.gathered + states.flat_loss}
    norm = final_norm_bytes(job) if part.last else 0
    loss = loss_peak_bytes(job) if part.last else 0
    head = head_bytes(job) if part.last else 0
    left = {"logits and loss": logits_bytes(job) if part.last else 0}
    return {
        "loss": _sum(
            states.resident, earlier, gathered, buffers,
            {"activations": kept, "logits and loss": loss}
        ),
        "forward ends": _sum(
            states.resident, earlier, forward, buffers,
            {"activations": kept, "logits and loss": norm},
        ),
        "backward begins": _sum(
            states.resident, states.first, gathered, buffers,
            {"activations": kept + working, "logits and loss": head},
        ),
        "backward ends": _sum(states.resident, states.last, idle, left),
        "optimizer step": _sum(states.resident, states.step, idle, left),
    }  # fmt: skip


def _activations(job: MemoryJob, part: RankPart, stage: int) -> tuple[int, int]:
    """Return what the stage keeps of all micro-batches in flight, and what one layer works with besides."""
    flying = in_flight(job, stage)
    sparse = sum(job.shape.is_moe_layer(layer) for layer in part.layers)
    dense = len(part.layers) - sparse
    kept = flying * sum(
        count * layer_bytes(job, moe) for moe, count in ((True, sparse), (False, dense)) if count
    )
    largest = max(layer_bytes(job, moe, "none") for moe, count in ((True, sparse), (False, dense)) if count)
    working = backward_bytes(job, job.shape.is_moe_layer(part.layers[-1]))
    if job.recomputation == "full":
        working += largest
    if part.first:
        kept += flying * embedding_bytes(job)
    return round(kept), working


def _sum(*parts: Terms) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for term, size in part.items():
            total[term] = total.get(term, 0) + size
    return total
