"""Pipeline parallelism: the bubble of each schedule, and messages between stages.

F, I and W are the seconds of a stage's forward pass, input gradients and weight gradients on one micro-batch.
"""

from __future__ import annotations

from ds_configs.throughput.compute import Chip, Phase
from ds_configs.throughput.job import Schedule, TrainingJob
from ds_configs.throughput.links import send_seconds


def bubble_seconds(schedule: Schedule, stages: list[Phase], virtual_stages: int = 1) -> float:
    """Return the seconds that the busiest stage idles in one step.

    With equal stages the closed forms come out: GPipe (Huang et al. 2019 §2.3) and 1F1B (Narayanan et al.
    2021 §2.2.1) (p−1)(F+I+W); interleaved that over v (§2.2.2); ZB-H1 (p−1)(F+I−W) (Qi et al. 2024, arXiv
    2401.10241 §2.1); ZB-V (p−1)F/2, the skew between ranks, since inside a rank it has none at F = I = W
    (arXiv 2405.15362); where W is shorter, half of what it lacks is added, as no closed form is known. With
    unequal stages each of the others counts with its own time: the first micro-batch passes them all.
    """
    busiest = max(range(len(stages)), key=lambda index: stages[index].total)
    others = [phase for index, phase in enumerate(stages) if index != busiest]
    if schedule == "zb-h1":
        return sum(max(0.0, p.forward + p.backward_input - p.backward_weight) for p in others)
    if schedule == "zb-v":
        return sum(_skew(phase) for phase in others)
    return sum(phase.total for phase in others) / (virtual_stages if schedule == "interleaved" else 1)


def _skew(phase: Phase) -> float:
    forward, inputs, weights = phase.forward, phase.backward_input, phase.backward_weight
    return (forward + max(0.0, forward - weights) + max(0.0, inputs - weights)) / 2


def pipeline_send_seconds(chip: Chip, job: TrainingJob) -> float:
    """Seconds of messages in one step: activations forward and their gradients back, at each chunk's border.

    Sends wait for their receiver (DeepSpeed's p2p blocks; HCCL matches by order), so none is hidden.
    """
    parallel = job.parallel
    if parallel.pp == 1:
        return 0.0
    far = parallel.world_size > chip.hardware.fast_domain
    share = parallel.tp if parallel.sequence_parallel else 1
    message = job.tokens * job.shape.hidden * job.element_bytes / share
    chunks = 2 if job.schedule == "zb-v" else job.virtual_stages
    crossings = 2 * (job.micro_batches * chunks + parallel.pp - 1)
    return crossings * send_seconds(chip, far, message)
