"""The seconds of one optimizer step, term by term."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

from ds_configs.hardware import Hardware
from ds_configs.models import ModelShape
from ds_configs.models.stages import layers_of_stages
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
from ds_configs.throughput.job import Recomputation, TrainingJob
from ds_configs.throughput.links import Group, all_to_all_seconds, gather_seconds
from ds_configs.throughput.pipeline import bubble_seconds, pipeline_send_seconds


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
    key = LayerKey.of(job)
    stages = _stages(chip, job.shape, key, job.parallel.pp, job.recomputation, job.fused_tp)
    busiest = max(stages, key=lambda stage: stage.seconds)
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

    @cached_property
    def seconds(self) -> float:
        return self.whole.total


@lru_cache(maxsize=4096)
def _stages(
    chip: Chip, shape: ModelShape, key: LayerKey, pp: int, recomputation: Recomputation, fused_tp: bool
) -> tuple[_Stage, ...]:
    """Return the stages in order; those in the middle with as many layers are one object."""
    known: dict[tuple[int, bool, bool], _Stage] = {}
    stages = []
    for index, layers in enumerate(map(len, layers_of_stages(shape.layers, pp))):
        first, last = index == 0, index == pp - 1
        kind = (layers, first, last)
        if kind not in known:
            plain = _layers(chip, shape, key, layers)
            if first:
                plain = plain + embedding_seconds(chip, shape, key)
            if last:
                plain = plain + head_seconds(chip, shape, key)
            again = _recomputed(chip, shape, key, layers, recomputation)
            repeats = 2 if recomputation == "full" else 1
            tensor = _tensor_parallel(chip, shape, key, fused_tp, repeats) * layers
            expert = _expert_parallel(chip, shape, key, repeats) * (layers * _moe_share(shape))
            known[kind] = _Stage(plain, again, tensor, expert)
        stages.append(known[kind])
    return tuple(stages)


def _layers(chip: Chip, shape: ModelShape, key: LayerKey, layers: int) -> Phase:
    """Seconds of ``layers`` layers of one stage; those with experts are taken to lie evenly on the stages."""
    sparse = layers * _moe_share(shape)
    phase = ZERO
    if sparse < layers:
        phase = phase + layer_seconds(chip, shape, key, False)[0] * (layers - sparse)
    if sparse:
        phase = phase + layer_seconds(chip, shape, key, True)[0] * sparse
    return phase


def _moe_share(shape: ModelShape) -> float:
    return 0.0 if shape.moe is None else shape.moe_layers / shape.layers


def _recomputed(
    chip: Chip, shape: ModelShape, key: LayerKey, layers: int, recomputation: Recomputation
) -> Phase:
    """What the backward pass of ``layers`` layers computes once more."""
    if recomputation == "none":
        return ZERO
    if recomputation == "full":
        return Phase(0.0, _layers(chip, shape, key, layers).forward, 0.0)
    core = layer_seconds(chip, shape, key, shape.moe is not None)[1]
    return Phase(0.0, core * layers, 0.0)


def _tensor_parallel(chip: Chip, shape: ModelShape, key: LayerKey, fused: bool, repeats: int) -> Phase:
    """The exposed tensor-parallel seconds of a layer, those of its forward pass ``repeats`` times.

    Two all-reduces forward and two backward (Shoeybi et al. 2019 §3), or as many pairs of all-gather and
    reduce-scatter (Korthikanti et al. 2022 §4.2.2, which hides the gather it adds in the backward pass).
    """
    group = Group.of(key.tp, 1, chip.hardware.fast_domain)
    one = 4 * gather_seconds(chip, group, _activation_bytes(shape, key))
    if fused:
        one *= 1 - chip.efficiency.fused_tp_overlap
    return Phase(one, one * repeats, 0.0)


def _expert_parallel(chip: Chip, shape: ModelShape, key: LayerKey, repeats: int) -> Phase:
    """The seconds in which a layer's tokens go to their experts and back, forward and backward."""
    if shape.moe is None or key.ep == 1:
        return ZERO
    share = key.tp if key.sequence_parallel else 1
    sent = _activation_bytes(shape, key) * shape.moe.top_k / share
    two = 2 * all_to_all_seconds(chip, Group.of(key.ep, key.tp, chip.hardware.fast_domain), sent)
    return Phase(two, two * repeats, 0.0)


def _activation_bytes(shape: ModelShape, key: LayerKey) -> int:
    return key.seq * key.micro_batch * shape.hidden * key.element_bytes
