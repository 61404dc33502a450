"""The seconds of one optimizer step, term by term."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

from ds_configs.hardware import Hardware
from ds_configs.models import ModelShape
from ds_configs.throughput.compute import (
    ZERO,
    Chip,
    LayerKey,
    Phase,
    embedding_seconds,
    head_seconds,
    layer_seconds,
)
from ds_configs.throughput.data import data_parallel_seconds, offload_seconds, optimizer_seconds
from ds_configs.throughput.efficiency import Efficiency, load_efficiency
from ds_configs.throughput.job import TrainingJob
from ds_configs.throughput.links import all_to_all_seconds, axis_group, gather_seconds
from ds_configs.throughput.pipeline import bubble_seconds, layers_of_stages, pipeline_send_seconds


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step on the busiest rank, each term without those before it."""

    compute: float
    """Forward and backward: matmuls, attention, memory-bound operators, logits and loss."""
    recomputation: float
    """Forward passes done again."""
    tensor_parallel: float
    """All-reduces, or all-gathers and reduce-scatters, that are not hidden."""
    expert_parallel: float
    """All-to-alls to the experts and back."""
    pipeline: float
    """Messages between stages."""
    bubble: float
    """Waiting for the first micro-batch to arrive and the last to come back."""
    data_parallel: float
    """Gradient reduction and ZeRO's gathers that are not hidden."""
    optimizer: float
    """Adam."""
    offload: float
    """Traffic to and from the host."""

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return sum(getattr(self, field.name) for field in fields(self))

    def tokens_per_second(self, job: TrainingJob) -> float:
        """Return the tokens a second and card."""
        return job.global_batch * job.seq / self.total / job.parallel.world_size


def step_time(job: TrainingJob, hardware: Hardware, efficiency: Efficiency | None = None) -> StepTime:
    """Return what one step of ``job`` takes on ``hardware``; ``efficiency`` is its kind's unless given."""
    chip = Chip(hardware, efficiency or load_efficiency(hardware.accelerator))
    stages = _stages(chip, job)
    busiest = max(stages, key=lambda stage: stage.whole.total)
    times = job.micro_batches
    backward = busiest.whole.backward_input + busiest.whole.backward_weight
    bubble = 0.0
    if job.parallel.pp > 1:
        bubble = bubble_seconds(job.schedule, [stage.whole for stage in stages], job.virtual_stages)
    return StepTime(
        compute=times * busiest.plain.total,
        recomputation=times * busiest.again.total,
        tensor_parallel=times * busiest.tensor.total,
        expert_parallel=times * busiest.expert.total,
        pipeline=pipeline_send_seconds(chip, job),
        bubble=bubble,
        data_parallel=data_parallel_seconds(chip, job, busiest.whole.forward, backward),
        optimizer=optimizer_seconds(chip, job),
        offload=offload_seconds(chip, job),
    )


@dataclass(frozen=True)
class _Stage:
    """What one pipeline stage does with one micro-batch."""

    plain: Phase
    again: Phase
    tensor: Phase
    expert: Phase

    @cached_property
    def whole(self) -> Phase:
        return self.plain + self.again + self.tensor + self.expert


def _stages(chip: Chip, job: TrainingJob) -> list[_Stage]:
    """Return the stages in order; those in the middle with as many layers are one object."""
    key, last = LayerKey.of(job), job.parallel.pp - 1
    known: dict[tuple[int, bool, bool], _Stage] = {}
    stages = []
    for index, layers in enumerate(layers_of_stages(job.shape.layers, job.parallel.pp)):
        kind = (layers, index == 0, index == last)
        if kind not in known:
            known[kind] = _stage(chip, job, key, *kind)
        stages.append(known[kind])
    return stages


def _stage(chip: Chip, job: TrainingJob, key: LayerKey, layers: int, first: bool, last: bool) -> _Stage:
    plain = _layers(chip, job, key, layers)
    if first:
        plain = plain + embedding_seconds(chip, job.shape, key)
    if last:
        plain = plain + head_seconds(chip, job.shape, key)
    tensor, expert = _layer_communication(chip, job, layers)
    return _Stage(plain, _recomputed(chip, job, key, layers), tensor, expert)


def _layers(chip: Chip, job: TrainingJob, key: LayerKey, layers: int) -> Phase:
    """Seconds of ``layers`` layers of one stage; those with experts are taken to lie evenly on the stages."""
    shape = job.shape
    sparse = layers * _moe_share(shape)
    phase = ZERO
    if sparse < layers:
        phase = phase + layer_seconds(chip, shape, key, False)[0] * (layers - sparse)
    if sparse:
        phase = phase + layer_seconds(chip, shape, key, True)[0] * sparse
    return phase


def _moe_share(shape: ModelShape) -> float:
    return 0.0 if shape.moe is None else shape.moe_layers / shape.layers


def _recomputed(chip: Chip, job: TrainingJob, key: LayerKey, layers: int) -> Phase:
    """What the backward pass of ``layers`` layers computes once more."""
    if job.recomputation == "none":
        return ZERO
    if job.recomputation == "full":
        return Phase(0.0, _layers(chip, job, key, layers).forward, 0.0)
    core = layer_seconds(chip, job.shape, key, job.shape.moe is not None)[1]
    return Phase(0.0, core * layers, 0.0)


def _layer_communication(chip: Chip, job: TrainingJob, layers: int) -> tuple[Phase, Phase]:
    """Return the exposed tensor-parallel and the expert-parallel seconds of ``layers`` layers.

    Tensor parallelism: two all-reduces forward and two backward (Shoeybi et al. 2019 §3), or as many pairs of
    all-gather and reduce-scatter (Korthikanti et al. 2022 §4.2.2, which hides the gather it adds in the
    backward pass); full recomputation repeats the forward ones.
    """
    parallel, shape = job.parallel, job.shape
    domain = chip.hardware.fast_domain
    again = 1 if job.recomputation == "full" else 0
    activation = job.tokens * shape.hidden * job.element_bytes
    one = 4 * gather_seconds(chip, axis_group("tp", parallel, domain), activation)
    if job.fused_tp:
        one *= 1 - chip.efficiency.fused_tp_overlap
    tensor = Phase(one, one * (1 + again), 0.0) * layers
    if shape.moe is None or parallel.ep == 1:
        return tensor, ZERO
    sent = activation * shape.moe.top_k / (parallel.tp if parallel.sequence_parallel else 1)
    two = 2 * all_to_all_seconds(chip, axis_group("ep", parallel, domain), sent)
    return tensor, Phase(two, two * (1 + again), 0.0) * (layers * _moe_share(shape))
