"""Activations that a decoder layer keeps for its backward pass, in bytes, for two kinds of kernels.

``megatron``: Korthikanti et al. 2022 (arXiv 2205.05198), §4 and table 2, taken apart by tensor so that it
extends to grouped queries, gated MLPs, flash attention and experts; for the paper's model it is the paper's
formula. ``transformers``: what autograd saves of Hugging Face's unfused operators. Both count a layer's
tokens = micro_batch × sequence; what tensor parallelism divides is divided by ``tp``, and what it does not
by the sequence-parallel degree (``tp`` or 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from ds_configs.memory.job import MemoryJob
from ds_configs.models import ModelShape

FP32 = 4
MIB = 1 << 20
MASK = 1
"""Bytes of an element of a dropout mask."""
FLASH_ROW = 2 * 8 * FP32
"""npu_fusion_attention keeps the maximum and the sum of each row of each head, eight times each, in fp32."""
CAUSAL_MASK = 2048 * 2048
"""torch_npu's scaled_dot_product_attention makes a mask of 2048 × 2048 booleans at each causal call and
keeps it."""
# Tensors of the MLP's inner width kept for each activation, without and with the product that follows it:
# what transformers' Python code of that name saves. "gelu_new" is written out in elementary operators.
UNFUSED_INNER = {"gelu_new": 5, "relu": 1}
USUAL_INNER = 2


@dataclass(frozen=True)
class Widths:
    """Bytes a token that a layer keeps, by what divides them."""

    replicated: float = 0.0
    """Divided by sequence parallelism only."""
    split: float = 0.0
    """Divided by tensor parallelism."""
    quadratic: float = 0.0
    """The attention matrix, a token: divided by tensor parallelism, recomputed by selective recomputation."""

    def __add__(self, other: Widths) -> Widths:
        return Widths(
            self.replicated + other.replicated, self.split + other.split, self.quadratic + other.quadratic
        )


def layer_bytes(job: MemoryJob, moe: bool, recomputation: str | None = None) -> int:
    """Return what one layer keeps of one micro-batch on one rank, in bytes."""
    recomputation = job.recomputation if recomputation is None else recomputation
    tokens = job.micro_batch * job.sequence
    tp = job.parallel.tp
    sequence_split = tp if job.parallel.sequence_parallel else 1
    if recomputation == "full":  # the layer's input alone
        return round(tokens * job.element * job.shape.hidden / sequence_split)
    widths = _layer_widths(job, moe)
    mask = _mask_bytes(job) if job.attention == "flash" and job.kernels == "transformers" else 0
    quadratic = 0.0 if recomputation == "selective" else widths.quadratic
    divided = widths.replicated / sequence_split + (widths.split + quadratic) / tp
    return round(tokens * divided) + mask


def _mask_bytes(job: MemoryJob) -> int:
    """Return what a causal call's mask takes: itself, and what the hole of its scratch copy wastes.

    The mask is cut from a matrix of ones of the same size. The allocator fills the hole that this leaves
    with the next tensors of 1 MiB and more; a rest below 1 MiB it does not split off, and counts as
    allocated.
    """
    shape, tokens = job.shape, job.micro_batch * job.sequence
    sizes = (tokens * job.element * shape.hidden, tokens * job.element * shape.ffn // job.parallel.tp)
    tensor = next((size for size in sizes if size >= MIB), CAUSAL_MASK + 1)
    rest = CAUSAL_MASK % tensor
    return CAUSAL_MASK + (rest if tensor <= CAUSAL_MASK and rest < MIB else 0)


def backward_bytes(job: MemoryJob, moe: bool) -> int:
    """Return what one layer's backward pass works with besides what the forward pass kept.

    Its height is in the MLP, which comes first and is widest: the gradients of the inner tensors that the
    gated product joins, one of which takes the place of the product itself.
    """
    shape = job.shape
    width = shape.ffn
    if moe and shape.moe:
        width = shape.moe.top_k * shape.moe.expert_ffn + shape.moe.shared_ffn
    tensors = 2 if shape.gated_mlp else 1
    return job.micro_batch * job.sequence * tensors * job.element * width // job.parallel.tp


def _layer_widths(job: MemoryJob, moe: bool) -> Widths:
    attention = _megatron_attention if job.kernels == "megatron" else _transformers_attention
    return attention(job) + _mlp(job, moe)


def _attention_widths(shape: ModelShape) -> tuple[int, int, int]:
    """Return the widths of all queries, all keys and all values as attention sees them."""
    if shape.mla:
        head = shape.mla.nope_dim + shape.mla.rope_dim
        return shape.heads * head, shape.heads * head, shape.heads * shape.mla.value_dim
    return shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.head_dim


def _megatron_attention(job: MemoryJob) -> Widths:
    shape, e = job.shape, job.element
    queries, keys, values = _attention_widths(shape)
    out = shape.heads * (shape.mla.value_dim if shape.mla else shape.head_dim)
    dropped = MASK * shape.hidden if shape.dropout else 0
    replicated = e * shape.hidden * shape.norms_per_layer + e * shape.hidden + dropped
    split = e * (queries + keys + values + out) + _latent(shape, e)
    quadratic = 0.0
    if job.attention == "eager":
        quadratic = e * shape.heads * job.sequence
        if shape.attention_dropout:
            quadratic += (e + MASK) * shape.heads * job.sequence
    else:
        split += FLASH_ROW * shape.heads
    return Widths(replicated, split, quadratic)


def _latent(shape: ModelShape, e: int) -> int:
    if shape.mla is None:
        return 0
    return e * ((shape.mla.q_rank or 0) + shape.mla.kv_rank + shape.mla.rope_dim)


def norm_bytes(shape: ModelShape, e: int, width: int) -> int:
    """Return the bytes a token that a norm keeps besides its output.

    transformers' RMSNorm works on an fp32 copy and keeps it with the normalised values, in the model's
    dtype or still in fp32; LayerNorm keeps its input.
    """
    if shape.norm == "rmsnorm":
        return (FP32 + e) * width
    return 2 * FP32 * width if shape.norm == "rmsnorm_fp32" else e * width


def _transformers_attention(job: MemoryJob) -> Widths:
    shape, e = job.shape, job.element
    queries, keys, values = _attention_widths(shape)
    out = shape.heads * (shape.mla.value_dim if shape.mla else shape.head_dim)
    replicated = shape.norms_per_layer * norm_bytes(shape, e, shape.hidden) + e * shape.hidden
    if shape.dropout:
        replicated += 2 * e * shape.hidden  # one mask behind attention, one behind the MLP
    split: float = e * (queries + out)
    if shape.mla:  # replicated: every rank makes the latent vectors whole
        rank = (shape.mla.q_rank or 0) + shape.mla.kv_rank
        replicated += norm_bytes(shape, e, rank) + e * rank
    if shape.qk_norm != "none":
        split += norm_bytes(shape, e, queries + keys)
    quadratic = 0.0
    if shape.fused_qkv and job.attention == "flash":
        split += e * (queries + keys)  # the values are a view of all three
    if job.attention == "flash":
        # The kernel's output is (batch, head, token, …); the output layer's input is a copy in another order.
        split += e * (keys + values + out) + FLASH_ROW * shape.heads
    else:
        groups = shape.heads // shape.kv_heads if shape.mla is None else 1
        split += e * (keys + values) * groups  # repeat_kv copies them for every query head
        upcast = FP32 if e != FP32 and shape.softmax_fp32 else 0
        quadratic = (e + upcast) * shape.heads * job.sequence
        if shape.attention_dropout:
            quadratic += 2 * e * shape.heads * job.sequence
    return Widths(replicated, split, quadratic)


def _mlp(job: MemoryJob, moe: bool) -> Widths:
    shape, e = job.shape, job.element
    into = e * shape.hidden if shape.norms_per_layer > 1 else 0  # a parallel MLP shares attention's input
    if job.kernels == "megatron":
        into = e * shape.hidden + (MASK * shape.hidden if shape.dropout else 0)
    if not (moe and shape.moe):
        return Widths(replicated=into, split=e * _inner_tensors(job) * shape.ffn)
    routed = shape.moe.top_k * (e * _inner_tensors(job) * shape.moe.expert_ffn + 2 * e * shape.hidden)
    shared = e * _inner_tensors(job) * shape.moe.shared_ffn
    if shape.moe.shared_gate and job.kernels == "transformers":
        into += e * shape.hidden  # the shared expert's output, for its gate's gradient
    router = 2 * FP32 * shape.moe.experts
    return Widths(replicated=into + router + routed, split=shared)


def _inner_tensors(job: MemoryJob) -> int:
    """Number of tensors of the MLP's inner width that are kept."""
    if job.kernels == "megatron":  # fused: the activation's inputs and its output
        return 3 if job.shape.gated_mlp else 2
    kept = UNFUSED_INNER.get(job.shape.activation, USUAL_INNER)
    return kept + 2 if job.shape.gated_mlp else kept
