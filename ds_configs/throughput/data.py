"""What a step does for the weights: gradient reduction, ZeRO's gathers, optimizer, offload.

Volumes: Rajbhandari et al. 2020 (ZeRO), arXiv 1910.02054 §7; when each stage communicates is DeepSpeed's:
stages 0 and 1 at the end of accumulation, stages 2 and 3 in every micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ds_configs.models import ModelShape
from ds_configs.models.stages import layers_of_stages
from ds_configs.throughput.compute import Chip
from ds_configs.throughput.job import TrainingJob
from ds_configs.throughput.links import Group, all_reduce_seconds, gather_seconds

# Mixed-precision Adam on the card, bytes a parameter: gradient to fp32 2+4, its norm 4, clipping 4+4, update
# reads gradient, master weight and two moments 16, writes three of them 12, writes the 16-bit weight 2,
# clears 2.
ADAM_BYTES = 50
# DeepSpeed's CPU Adam in host memory: reads gradient, weight and moments 16, writes three 12, the 16-bit copy
# 2.
CPU_ADAM_BYTES = 30
# Optimizer states that NVMe offload reads and writes back: fp32 weight and two moments.
NVME_ADAM_BYTES = 24


@dataclass(frozen=True)
class RankParameters:
    """Parameters that the fullest rank computes with: those that all of dp share, and its experts."""

    dense: float
    expert: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.dense + self.expert


def rank_parameters(job: TrainingJob) -> RankParameters:
    """Return the parameters of the fullest pipeline stage on one tensor- and expert-parallel rank."""
    parallel = job.parallel
    return _rank_parameters(job.shape, parallel.tp, job.vocab_tp, parallel.pp, parallel.ep)


@lru_cache(maxsize=1024)
def _rank_parameters(shape: ModelShape, tp: int, vocab_tp: int, pp: int, ep: int) -> RankParameters:
    embedding, head = shape.embedding_parameters(), shape.head_parameters()
    # Layers count with their average: those with experts are taken to lie evenly on the stages.
    layer = (shape.parameters() - embedding - head) / shape.layers
    experts = 0.0
    if shape.moe is not None:
        matrices = 3 if shape.gated_mlp else 2
        all_experts = shape.moe.experts * matrices * shape.hidden * shape.moe.expert_ffn
        experts = all_experts * shape.moe_layers / shape.layers
    if shape.tied_embeddings and pp > 1:
        head += shape.vocab * shape.hidden  # the last stage holds a copy
    stages = [len(layers) for layers in layers_of_stages(shape.layers, pp)]
    dense = [count * (layer - experts) / tp for count in stages]
    dense[0] += embedding / vocab_tp
    dense[-1] += head / vocab_tp
    fullest = max(range(pp), key=lambda index: dense[index] + stages[index] * experts / ep / tp)
    return RankParameters(dense[fullest], stages[fullest] * experts / ep / tp)


def reduce_seconds(chip: Chip, job: TrainingJob) -> tuple[float, float]:
    """Return the seconds of one gradient reduction, and of one gather of all parameters.

    Stage 0 reduces to all, the others to the owner of each part.
    """
    parallel, parameters = job.parallel, rank_parameters(job)
    domain = chip.hardware.fast_domain
    whole = Group.of(parallel.dp, parallel.tp, domain)
    expert = Group.of(parallel.dp // parallel.ep, parallel.tp * parallel.ep, domain)
    reduction = all_reduce_seconds if job.stage == 0 else gather_seconds
    reduced = gathered = 0.0
    for group, count in ((whole, parameters.dense), (expert, parameters.expert)):
        reduced += reduction(chip, group, count * job.gradient_bytes) if count else 0.0
        gathered += gather_seconds(chip, group, count * job.element_bytes) if count else 0.0
    return reduced, gathered


def data_parallel_seconds(chip: Chip, job: TrainingJob, forward: float, backward: float) -> float:
    """Return the seconds of data-parallel communication in one step that computation does not hide.

    ``forward`` and ``backward`` are a rank's seconds on one micro-batch. With ``overlap_dp`` a reduction
    hides behind the backward pass that makes its gradients, and stage 3's gathers behind the pass that uses
    them.
    """
    if job.parallel.dp == 1:
        return 0.0
    reduced, gathered = reduce_seconds(chip, job)
    hidden = (forward, backward) if job.overlap_dp else (0.0, 0.0)
    if job.stage == 3:
        one = max(0.0, gathered - hidden[0]) + max(0.0, gathered + reduced - hidden[1])
        return job.micro_batches * one
    times = job.micro_batches if job.stage == 2 else 1
    update = gathered if job.stage else 0.0
    return times * max(0.0, reduced - hidden[1]) + update


def optimizer_seconds(chip: Chip, job: TrainingJob) -> float:
    """Return the seconds of the optimizer's step: Adam, bound by memory, on the part that a rank owns."""
    owned = owned_parameters(job)
    if job.offload_optimizer == "none":
        return chip.memory_seconds(owned * ADAM_BYTES)
    hardware = chip.hardware
    seconds = owned * CPU_ADAM_BYTES / hardware.host_memory_bandwidth
    if job.offload_optimizer == "nvme":
        # Reads and writes share the drives; the update of one part hides behind the next part's transfer.
        seconds = max(seconds, 2 * owned * NVME_ADAM_BYTES / 2 / hardware.nvme_bandwidth)
    return seconds


def offload_seconds(chip: Chip, job: TrainingJob) -> float:
    """Return the seconds of a step's traffic between card and host that offloading needs.

    Gradients go down once a reduction, updated weights come up once; with offloaded parameters a rank's part
    comes up before each gather, twice a micro-batch.
    """
    owned, hardware = owned_parameters(job), chip.hardware
    seconds = 0.0
    if job.offload_optimizer != "none":
        times = job.micro_batches if job.stage >= 2 else 1
        seconds += owned * (job.gradient_bytes * times + job.element_bytes) / hardware.host_bandwidth
    if job.offload_param != "none":
        rate = hardware.host_bandwidth
        if job.offload_param == "nvme":
            rate = min(rate, hardware.nvme_bandwidth)
        seconds += 2 * job.micro_batches * owned * job.element_bytes / rate
    return seconds


def owned_parameters(job: TrainingJob) -> float:
    """Return the parameters whose optimizer state a rank holds: from stage 1 on its part alone."""
    parameters, parallel = rank_parameters(job), job.parallel
    if job.stage == 0:
        return parameters.total
    return parameters.dense / parallel.dp + parameters.expert / (parallel.dp // parallel.ep)
