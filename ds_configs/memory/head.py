"""Memory of what stands before and behind the layers: embedding, final norm, logits and loss."""

from __future__ import annotations

from ds_configs.memory.activations import FP32, MASK, norm_bytes
from ds_configs.memory.job import MemoryJob


def _tokens(job: MemoryJob) -> int:
    return job.micro_batch * job.sequence


def embedding_bytes(job: MemoryJob) -> int:
    """Return what the embedding keeps: the mask of its dropout (Korthikanti 2022 §4.3)."""
    if not job.shape.dropout:
        return 0
    split = job.parallel.tp if job.kernels == "megatron" and job.parallel.sequence_parallel else 1
    mask = MASK if job.kernels == "megatron" else job.element
    return _tokens(job) * mask * job.shape.hidden // split


def logits_bytes(job: MemoryJob) -> int:
    """Return the logits alone: a training loop's output object, or a pipeline's slot, holds them until the
    next."""
    if job.kernels == "megatron":
        return 0
    return _tokens(job) * job.element * job.shape.vocab


def final_norm_bytes(job: MemoryJob) -> int:
    """Return what the final norm and the output layer keep of their inputs."""
    e, hidden = job.element, job.shape.hidden
    if job.kernels == "megatron":
        return _tokens(job) * 2 * e * hidden // job.parallel.tp
    return _tokens(job) * (norm_bytes(job.shape, e, hidden) + e * hidden)


def head_bytes(job: MemoryJob) -> int:
    """Return what is there of final norm and logits from the forward pass to the end of the backward pass."""
    if job.kernels == "megatron":  # Korthikanti 2022 §4.3: 4sbh/t (1 + v/h)
        return final_norm_bytes(job) + _tokens(job) * FP32 * job.shape.vocab // job.parallel.tp
    return final_norm_bytes(job) + logits_bytes(job)


def loss_peak_bytes(job: MemoryJob) -> int:
    """Return the peak of logits and loss.

    transformers upcasts the logits to fp32; log_softmax's result, the gradient of the chosen
    log-probabilities and that of the logits are there at once: three fp32 tensors beside the logits.
    Megatron's vocab-parallel cross entropy works in place on one fp32 copy.
    """
    if job.kernels == "megatron":
        return head_bytes(job)
    return head_bytes(job) + _tokens(job) * 3 * FP32 * job.shape.vocab
