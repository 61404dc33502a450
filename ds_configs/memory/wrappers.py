"""What DeepSpeed 0.19.8's optimizer wrappers allocate, by the moment of the step.

Each function is one wrapper and returns its `StateMemory`; the comments name the place in DeepSpeed's
source. Sizes are bytes on one rank. The letters are those of the ZeRO paper (arXiv 1910.02054): Ψ
parameters of the rank, N data-parallel ranks, K the optimizer's multiplier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ds_configs.memory.job import BYTES, MemoryJob
from ds_configs.memory.rank import RankPart

FP32 = 4
# `buffered_allreduce_fallback` flattens at most so many gradients (engine.py: MEMORY_OPT_ALLREDUCE_SIZE).
ALLREDUCE_ELEMENTS = 500_000_000
Terms = Mapping[str, int]


@dataclass(frozen=True)
class StateMemory:
    """Memory of parameters, gradients and optimizer at the moments that can be the peak."""

    resident: Terms
    """From the first step on, all the time."""
    carried: Terms = field(default_factory=dict)
    """During a later micro-batch's forward pass: gradients of the earlier ones."""
    first: Terms = field(default_factory=dict)
    """Beyond `resident`, when the first gradients of a backward pass have been made."""
    last: Terms = field(default_factory=dict)
    """Beyond `resident`, when all gradients have been made and are being reduced."""
    step: Terms = field(default_factory=dict)
    """Beyond `resident`, while the optimizer steps."""
    host: Terms = field(default_factory=dict)
    """Host memory."""
    gathered: int = 0
    """Bytes of whole parameters at the end of the forward pass, and of those fetched for the backward pass
    (ZeRO-3)."""
    flat_forward: int = 0
    """Bytes of the flat buffer that the last prefetch of the forward pass came through: it lives until the
    last of its parameters is used (ZeRO-3)."""
    flat_loss: int = 0
    """As ``flat_forward``, of what is prefetched for the backward pass when the loss is computed (ZeRO-3)."""


@dataclass(frozen=True)
class Divided:
    """A rank's parameters and its partition of them."""

    total: int
    """Ψ of this rank."""
    partition: int
    """Elements of the rank's partition: dense ones over dp, experts over dp / ep, padded to whole shares."""
    largest: int
    flat: int
    """Elements of the padded flat buffers that hold all of the rank's parameters."""
    output: int
    """Elements of the output layer's matrix, whose gradient is made first."""


def divide(job: MemoryJob, part: RankPart) -> Divided:
    """Return the rank's Ψ and its partition under ZeRO.

    Padding: `flatten_dense_tensors_aligned` pads the flat buffer to a multiple of 2 × N (4-byte alignment).
    """
    dp, expert_dp = job.parallel.dp, job.parallel.dp // job.parallel.ep
    dense = -(-part.dense // (2 * dp)) * 2
    expert = -(-part.expert // (2 * expert_dp)) * 2 if part.expert else 0
    flat = dense * dp + expert * expert_dp
    return Divided(part.total, dense + expert, part.largest, flat, part.output)


def state_memory(job: MemoryJob, part: RankPart) -> StateMemory:
    """Return what the wrapper that DeepSpeed would choose allocates (`_do_optimizer_sanity_check`)."""
    divided = divide(job, part)
    if job.stage == 3:
        return _zero3(job, part, divided)
    gradient_dtype = job.gradient_dtype or job.dtype
    if (
        job.stage == 1
        and job.dtype == "bf16"
        and gradient_dtype == "fp32"
        and job.offload_optimizer == "none"
    ):
        return _bf16_optimizer(job, divided)
    if job.stage:
        return _zero12(job, divided)
    if job.dtype == "fp32":
        return _plain(job, divided)
    if job.dtype == "bf16" and job.parallel.pp > 1:
        return _bf16_optimizer(job, divided)
    return _fp16_optimizer(job, divided)


def model_states(job: MemoryJob, part: RankPart) -> dict[str, int]:
    """Return what the ZeRO paper counts (arXiv 1910.02054 §3.1, §5): no buffers or temporaries.

    In fp32 there are no master weights beside the parameters, whatever DeepSpeed copies.
    """
    divided, element = divide(job, part), job.element
    whole, share = divided.total, divided.partition
    return {
        "parameters": element * (share if job.stage == 3 else whole),
        "gradients": element * (share if job.stage >= 2 else whole),
        "master weights": (FP32 if job.mixed else 0) * (share if job.stage >= 1 else whole),
        "optimizer states": _states(job, share if job.stage >= 1 else whole),
    }


def _states(job: MemoryJob, elements: int) -> int:
    return FP32 * job.optimizer_states * elements


def _plain(job: MemoryJob, divided: Divided) -> StateMemory:
    """No wrapper: fp32 stage 0. Gradients are reduced through a flat copy of at most 500 M elements."""
    gradients = FP32 * divided.total
    reduced = FP32 * min(divided.total, ALLREDUCE_ELEMENTS)
    return StateMemory(
        resident={"parameters": gradients, "optimizer states": _states(job, divided.total)},
        carried={"gradients": gradients},
        first={"gradients": FP32 * divided.output if job.accumulation == 1 else gradients},
        last={"gradients": gradients, "reduce buckets": reduced},
        step={"gradients": gradients},
    )


def _fp16_optimizer(job: MemoryJob, divided: Divided) -> StateMemory:
    """FP16_Optimizer (fp16/fused_optimizer.py), for fp16 and bf16 under stage 0.

    `step` casts every gradient to fp32 and then flattens the casts while the originals are there: 8Ψ more.
    """
    gradients = job.element * divided.total
    return StateMemory(
        resident={
            "parameters": job.element * divided.total,
            "master weights": FP32 * divided.total,
            "optimizer states": _states(job, divided.total),
        },
        carried={"gradients": gradients},
        first={"gradients": job.element * divided.output if job.accumulation == 1 else gradients},
        last={
            "gradients": gradients,
            "reduce buckets": job.element * min(divided.total, ALLREDUCE_ELEMENTS),
        },
        step={"gradients": gradients, "step temporaries": 2 * FP32 * divided.total},
    )


def _bf16_optimizer(job: MemoryJob, divided: Divided) -> StateMemory:
    """BF16_Optimizer (bf16_optimizer.py): stage 1 with fp32 gradients, and bf16 pipelines under stage 0.

    Master weights and states are partitioned, accumulated gradients are not. The model's own gradients come
    on top from the first backward pass of a step to its end (`update_hp_grads` copies them,
    `clear_lp_grads` zeroes them).
    """
    accumulated = BYTES[job.gradient_dtype or job.dtype]
    own = job.element * divided.total
    cast = 0 if accumulated == FP32 else FP32 * divided.partition
    return StateMemory(
        resident={
            "parameters": own,
            "gradients": accumulated * divided.total,
            "master weights": FP32 * divided.partition,
            "optimizer states": _states(job, divided.partition),
        },
        carried={"gradients": own},
        first={"gradients": job.element * divided.output if job.accumulation == 1 else own},
        last={"gradients": own},
        step={"gradients": own, "step temporaries": cast},
    )


def _overlaps(job: MemoryJob) -> bool:
    if job.parallel.pp > 1:  # engine.py: pipelines do not support it
        return False
    return job.stage == 3 if job.buckets.overlap_comm is None else job.buckets.overlap_comm


def _zero12(job: MemoryJob, divided: Divided) -> StateMemory:
    """DeepSpeedZeroOptimizer (zero/stage_1_and_2.py).

    The master weights are a copy even in fp32. `setup_buckets` allocates the whole reduce bucket (two with
    overlap_comm), however small the model; without `contiguous_gradients`, which offload switches on, the
    gradients themselves wait for as many. `average_tensor` all-reduces a flat copy of what the bucket holds.
    """
    element, bucket = job.element, job.buckets.reduce
    offload = job.offload_optimizer != "none"
    master, states = FP32 * divided.partition, _states(job, divided.partition)
    resident = {"parameters": element * divided.flat}
    host: dict[str, int] = {}
    if offload:
        resident["offload buffers"] = element * divided.largest
        host = {
            "master weights": master,
            "optimizer states": states,
            "gradients": FP32 * divided.partition,
            "offload buffers": element * (divided.partition + divided.largest),
        }
    else:
        resident |= {"master weights": master, "optimizer states": states}
    contiguous = job.buckets.contiguous_gradients or offload
    buffers = element * (bucket if contiguous else min(bucket, divided.total)) * (2 if _overlaps(job) else 1)
    kept = 0 if offload else element * divided.partition
    flat_copy = element * min(bucket, divided.total) if job.parallel.dp > 1 else 0
    whole = element * divided.total
    if job.stage == 1:
        # Gradients stay whole until the last micro-batch; reduction moves them into the bucket.
        last = {"gradients": whole, "reduce buckets": buffers}
        if flat_copy + kept > element * min(bucket, divided.total):
            last["gradients"] = whole - element * min(bucket, divided.total)
            last["reduce buckets"] = buffers + flat_copy
        carried = {"gradients": whole, "reduce buckets": buffers}
        if job.parallel.pp > 1:  # reduce_gradients(pipeline_parallel=True) makes a bucket of its own
            last["reduce buckets"] += element * bucket
    else:
        last = {"gradients": kept, "reduce buckets": buffers + flat_copy}
        # accumulated in their own dtype, which only the reduction makes of what the bucket held
        carried = {"gradients": kept * BYTES[job.gradient_dtype or job.dtype] // element}
    first = {
        "reduce buckets": buffers if contiguous else 0,
        "gradients": divided.output * element if job.stage == 1 else 0,
    }
    if job.accumulation > 1:
        first["gradients"] = carried["gradients"]
    # step: flatten(averaged gradients), then its fp32 copy, while the gradients are there.
    temporaries = 0 if offload else divided.partition * (element + (FP32 if element != FP32 else 0))
    step = {"gradients": kept, "step temporaries": temporaries}
    return StateMemory(resident, carried, first, last, step, host)


def _zero3(job: MemoryJob, part: RankPart, divided: Divided) -> StateMemory:
    """DeepSpeedZeroOptimizer_Stage3 (zero/stage3.py, partitioned_param_coordinator.py).

    Resident: the partitions, the small tensors that are kept whole, the fp32 partition, the flat gradient
    partition and the reduce bucket, from initialisation on. Gathered parameters stay while they are used
    again within `reuse`; the backward pass uses the last layers again first, so half of `reuse` stays whole
    at the loss. Each submodule prefetches once more, past the loss too, until `max_live` are whole.
    """
    element, buckets = job.element, job.buckets
    offload = job.offload_optimizer != "none"
    partition = divided.partition
    persistent = part.smaller_than(buckets.persistence)
    master, states = FP32 * partition, _states(job, partition)
    gradients = BYTES[job.gradient_dtype or job.dtype] * partition
    bucket = element * buckets.reduce if buckets.contiguous_gradients else 0
    resident = {"persistent parameters": element * persistent, "reduce buckets": bucket}
    host: dict[str, int] = {}
    on_host = "parameters" if job.offload_param == "cpu" else None
    if job.offload_param == "none":
        resident["parameters"] = element * partition
    elif on_host:
        host["parameters"] = element * partition
    if offload:
        host |= {"gradients": gradients + FP32 * partition}
        if job.offload_optimizer == "cpu":
            host |= {"master weights": master, "optimizer states": states}
        else:
            sub_group = min(buckets.sub_group, partition)
            host |= {"swap buffers": FP32 * (job.optimizer_states + 2) * sub_group}
    else:
        resident |= {"gradients": gradients, "master weights": master, "optimizer states": states}
    reducible = element * min(buckets.reduce, divided.total)
    movable = divided.total - persistent
    kept = min(movable, buckets.reuse // 2)
    whole = min(movable, max(kept, buckets.max_live)) if buckets.prefetch else kept
    sub_group = min(buckets.sub_group, partition)
    step_temporaries = 0 if offload else sub_group * (element + (FP32 if element != FP32 else 0))
    return StateMemory(
        resident=resident,
        last={"reduce temporaries": reducible if buckets.contiguous_gradients else 2 * reducible},
        step={"step temporaries": step_temporaries},
        host=host,
        gathered=element * whole,
        flat_forward=element * min(movable, buckets.prefetch),
        flat_loss=element * min(movable - kept, buckets.prefetch),
    )
