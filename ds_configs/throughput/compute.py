"""Seconds that one rank computes on one micro-batch: matmuls, attention, and operators bound by memory.

A matmul takes its operations at the reachable peak plus its traffic at the reachable memory bandwidth. The
sum, not the larger of both (a roofline's), because a tile is loaded before it is multiplied; so a thin
matmul, such as tensor parallelism leaves, is slower per operation than a thick one, without a fitted curve.

Operations of a causal sequence: attention is counted on the half that is not masked, forward 2 · seq · heads
· (qk + v width) / 2 a token; every matmul 2 · rows · inner · columns, forward once, backward twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ds_configs.hardware import Hardware
from ds_configs.models import ModelShape
from ds_configs.throughput.efficiency import Efficiency
from ds_configs.throughput.job import TrainingJob

# Flash attention's backward computes the scores again: five matmuls for the forward's two
# (Dao 2023, arXiv 2307.08691 §3.1).
FLASH_BACKWARD = 2.5
# Kernels of a layer beside its matmuls: norms, rotary embedding, activation, residual sums, attention,
# copies.
KERNELS_FORWARD, KERNELS_BACKWARD = 12, 18
# Traffic of the cross-entropy on fp32 logits, in bytes a logit (Megatron-LM's vocabulary-parallel loss): cast
# 2+4, maximum 4, subtract 8, exponent 8, sum 4, divide 8, its backward 8, cast back 4+2.
CROSS_ENTROPY_BYTES = 52
# Eager attention writes the scores: product, scaled masked softmax, dropout with its mask, read by the
# second product (bytes a score, fp16; Korthikanti et al. 2022, arXiv 2205.05198 §4.1), and the gradients of
# each.
SCORE_BYTES_FORWARD, SCORE_BYTES_BACKWARD = 13, 17
# fp32 gradient accumulation reads the new gradient and the sum, and writes the sum: bytes a parameter.
ACCUMULATE_BYTES = 2 + 4 + 4


@dataclass(frozen=True)
class Matmul:
    """A product of ``rows`` × ``inner`` and ``inner`` × ``columns``, ``count`` times."""

    rows: float
    inner: float
    columns: float
    count: int = 1

    @property
    def flops(self) -> float:
        """Operations, a multiplication and an addition each."""
        return 2.0 * self.rows * self.inner * self.columns * self.count

    def traffic(self, element_bytes: int) -> float:
        """Bytes that two inputs and the output take."""
        elements = self.rows * self.inner + self.inner * self.columns + self.rows * self.columns
        return elements * self.count * element_bytes


@dataclass(frozen=True)
class Phase:
    """Seconds of the forward pass, of the input's gradients and of the weights' gradients."""

    forward: float
    backward_input: float
    backward_weight: float

    @property
    def total(self) -> float:
        """Seconds of all three."""
        return self.forward + self.backward_input + self.backward_weight

    def __add__(self, other: Phase) -> Phase:
        return Phase(
            self.forward + other.forward,
            self.backward_input + other.backward_input,
            self.backward_weight + other.backward_weight,
        )

    def __mul__(self, factor: float) -> Phase:
        return Phase(self.forward * factor, self.backward_input * factor, self.backward_weight * factor)


ZERO = Phase(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Chip:
    """A card as software uses it: nominal figures times efficiencies."""

    hardware: Hardware
    efficiency: Efficiency

    def flop_seconds(self, flops: float, element_bytes: int) -> float:
        """Seconds of ``flops`` in matmuls. fp32 runs at a quarter of bf16's rate on the Cube (910B: 87 of
        328 TFLOP/s, github.com/gameofdimension/limulidae)."""
        return flops * (4 if element_bytes == 4 else 1) / (self.hardware.peak_flops * self.efficiency.matmul)

    def attention_seconds(self, flops: float, element_bytes: int) -> float:
        """Seconds of ``flops`` in flash attention."""
        factor = 4 if element_bytes == 4 else 1
        return flops * factor / (self.hardware.peak_flops * self.efficiency.attention)

    def memory_seconds(self, traffic: float) -> float:
        """Seconds that ``traffic`` bytes take to and from the card's memory."""
        return traffic / (self.hardware.hbm_bandwidth * self.efficiency.hbm)

    def matmul_seconds(self, matmul: Matmul, element_bytes: int) -> float:
        """Seconds of one product."""
        return (
            self.flop_seconds(matmul.flops, element_bytes)
            + self.memory_seconds(matmul.traffic(element_bytes))
            + matmul.count * self.efficiency.kernel_seconds
        )


def attention_matmuls(shape: ModelShape, tokens: float, tp: int) -> Iterator[Matmul]:
    """Yield the projections of one attention block on one of ``tp`` ranks."""
    if shape.mla is not None:
        mla, heads = shape.mla, shape.heads / tp
        width = mla.nope_dim + mla.rope_dim
        if mla.q_rank is None:
            yield Matmul(tokens, shape.hidden, heads * width)
        else:
            yield Matmul(tokens, shape.hidden, mla.q_rank)
            yield Matmul(tokens, mla.q_rank, heads * width)
        yield Matmul(tokens, shape.hidden, mla.kv_rank + mla.rope_dim)
        yield Matmul(tokens, mla.kv_rank, heads * (mla.nope_dim + mla.value_dim))
        yield Matmul(tokens, heads * mla.value_dim, shape.hidden)
        return
    query = shape.heads * shape.head_dim / tp
    yield Matmul(tokens, shape.hidden, query + 2 * _kv_width(shape, tp))
    yield Matmul(tokens, query, shape.hidden)


def mlp_matmuls(shape: ModelShape, tokens: float, tp: int, ep: int, moe: bool) -> Iterator[Matmul]:
    """Yield the products of one MLP, or of one mixture of experts with its tokens spread evenly."""
    up = 2 if shape.gated_mlp else 1
    if not moe or shape.moe is None:
        yield Matmul(tokens, shape.hidden, up * shape.ffn / tp)
        yield Matmul(tokens, shape.ffn / tp, shape.hidden)
        return
    experts = shape.moe
    yield Matmul(tokens, shape.hidden, experts.experts)
    local = experts.experts // ep
    share = tokens * experts.top_k / local
    yield Matmul(share, shape.hidden, up * experts.expert_ffn / tp, local)
    yield Matmul(share, experts.expert_ffn / tp, shape.hidden, local)
    if experts.shared_ffn:
        yield Matmul(tokens, shape.hidden, up * experts.shared_ffn / tp)
        yield Matmul(tokens, experts.shared_ffn / tp, shape.hidden)


def attention_flops(shape: ModelShape, job_seq: int, tokens: float, tp: int, causal: bool) -> float:
    """Operations of scores and their product with the values, forward, on one rank."""
    if shape.mla is not None:
        widths = shape.mla.nope_dim + shape.mla.rope_dim + shape.mla.value_dim
    else:
        widths = 2 * shape.head_dim
    return 2.0 * tokens * job_seq * shape.heads / tp * widths * (0.5 if causal else 1.0)


def vector_elements(shape: ModelShape, tp: int, sequence_parallel: bool, moe: bool) -> tuple[float, float]:
    """Elements a token that a layer's memory-bound operators read and write, forward and backward.

    Norms (fused) 2 and 3 of hidden each, two residual sums 3 each way, rotary embedding 2 each way, the
    layout copies of queries, keys and values 2 each way, attention's own inputs and outputs 1 and 2, and the
    activation.
    """
    share = tp if sequence_parallel else 1
    hidden = shape.hidden / share
    query, kv = shape.heads * shape.head_dim / tp, _kv_width(shape, tp)
    heads = query + 2 * kv
    inner = shape.ffn / tp
    if moe and shape.moe is not None:
        # Tokens are also copied to their experts and summed back with their weights, 2 each.
        inner = (shape.moe.expert_ffn * shape.moe.top_k + shape.moe.shared_ffn) / tp
        hidden += 2 * shape.moe.top_k * shape.hidden / (2 * 2 + 2 * 3)
    activation, activation_backward = (3, 5) if shape.gated_mlp else (2, 3)
    forward = (2 * 2 + 2 * 3) * hidden + 2 * (query + kv) + 2 * heads + heads + query + activation * inner
    backward = (
        (2 * 3 + 2 * 3) * hidden
        + 2 * (query + kv)
        + 2 * heads
        + 2 * (heads + query)
        + activation_backward * inner
    )
    return forward, backward


@dataclass(frozen=True)
class LayerKey:
    """What of a job decides one layer's time: the key under which it is kept."""

    tp: int
    vocab_tp: int
    ep: int
    sequence_parallel: bool
    seq: int
    micro_batch: int
    element_bytes: int
    attention: str

    @classmethod
    def of(cls, job: TrainingJob) -> LayerKey:
        """Take the key out of ``job``."""
        parallel = job.parallel
        return cls(
            parallel.tp,
            job.vocab_tp,
            parallel.ep,
            parallel.sequence_parallel,
            job.seq,
            job.micro_batch,
            job.element_bytes,
            job.attention,
        )


@lru_cache(maxsize=4096)
def layer_seconds(chip: Chip, shape: ModelShape, key: LayerKey, moe: bool) -> tuple[Phase, float]:
    """Return the seconds of one layer on one micro-batch, and those of attention's core.

    The second figure, forward, is what selective recomputation does once more.
    """
    size = key.element_bytes
    tokens = float(key.seq * key.micro_batch)
    products = [
        *attention_matmuls(shape, tokens, key.tp),
        *mlp_matmuls(shape, tokens, key.tp, key.ep, moe),
    ]
    forward = sum(chip.matmul_seconds(product, size) for product in products)
    weights = sum(product.inner * product.columns * product.count for product in products)
    core_forward, core_backward = _attention_core(chip, shape, key, tokens)
    vector, vector_backward = vector_elements(shape, key.tp, key.sequence_parallel, moe)
    gap = chip.efficiency.kernel_seconds
    phase = Phase(
        forward + core_forward + chip.memory_seconds(vector * tokens * size) + KERNELS_FORWARD * gap,
        forward
        + core_backward
        + chip.memory_seconds(vector_backward * tokens * size)
        + KERNELS_BACKWARD * gap,
        forward + chip.memory_seconds(weights * ACCUMULATE_BYTES),
    )
    return phase, core_forward


@lru_cache(maxsize=1024)
def head_seconds(chip: Chip, shape: ModelShape, key: LayerKey) -> Phase:
    """Return the seconds of output layer and loss on one micro-batch, vocabulary over ``vocab_tp`` ranks."""
    tokens = float(key.seq * key.micro_batch)
    product = Matmul(tokens, shape.hidden, shape.vocab / key.vocab_tp)
    seconds = chip.matmul_seconds(product, key.element_bytes)
    loss = chip.memory_seconds(tokens * shape.vocab / key.vocab_tp * CROSS_ENTROPY_BYTES)
    accumulate = chip.memory_seconds(shape.hidden * shape.vocab / key.vocab_tp * ACCUMULATE_BYTES)
    return Phase(seconds + loss * 0.7, seconds + loss * 0.3, seconds + accumulate)


@lru_cache(maxsize=1024)
def embedding_seconds(chip: Chip, shape: ModelShape, key: LayerKey) -> Phase:
    """Return the seconds of looking tokens up, and of adding their gradients, on one micro-batch."""
    tokens = float(key.seq * key.micro_batch)
    row = chip.memory_seconds(tokens * shape.hidden * 2 * key.element_bytes)
    accumulate = chip.memory_seconds(shape.hidden * shape.vocab / key.vocab_tp * ACCUMULATE_BYTES)
    return Phase(row, 0.0, row + accumulate)


def _attention_core(chip: Chip, shape: ModelShape, key: LayerKey, tokens: float) -> tuple[float, float]:
    size = key.element_bytes
    if key.attention == "flash":
        seconds = chip.attention_seconds(attention_flops(shape, key.seq, tokens, key.tp, causal=True), size)
        return seconds, FLASH_BACKWARD * seconds
    seconds = chip.flop_seconds(attention_flops(shape, key.seq, tokens, key.tp, causal=False), size)
    scores = tokens * key.seq * shape.heads / key.tp * size / 2
    return (
        seconds + chip.memory_seconds(scores * SCORE_BYTES_FORWARD),
        2 * seconds + chip.memory_seconds(scores * SCORE_BYTES_BACKWARD),
    )


def _kv_width(shape: ModelShape, tp: int) -> float:
    """Width of a rank's keys: a rank holds one head at least, so that few heads are held several times."""
    if shape.mla is not None:
        return shape.heads * shape.mla.value_dim / tp
    return max(1.0, shape.kv_heads / tp) * shape.head_dim
