"""The memory model against the figures and formulas of the papers it cites."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_configs.memory import MemoryJob, estimate
from ds_configs.memory.activations import layer_bytes
from ds_configs.memory.head import head_bytes
from ds_configs.memory.pipeline import in_flight
from ds_configs.models import ModelShape
from ds_configs.parallel import ParallelConfig


# ZeRO (arXiv 1910.02054), figure 1: Ψ = 7.5 B, N = 64, K = 12; in GB of 10^9 bytes.
@pytest.mark.parametrize(
    ("stage", "formula", "printed"),
    [
        (0, (2 + 2 + 12) * 7.5, "120.0"),
        (1, 2 * 7.5 + 2 * 7.5 + 12 * 7.5 / 64, "31.4"),
        (2, 2 * 7.5 + (2 + 12) * 7.5 / 64, "16.6"),
        (3, (2 + 2 + 12) * 7.5 / 64, "1.9"),
    ],
)
def test_zero_figure_1(stage: int, formula: float, printed: str) -> None:
    job = MemoryJob(ModelShape.from_parameters("7.5B"), ParallelConfig(dp=64), stage, dtype="fp16")
    states = sum(estimate(job).worst.model_states.values())
    assert states == formula * 1e9
    assert f"{states / 1e9:.1f}" == printed


SIZES = st.fixed_dictionaries(
    {
        "b": st.integers(1, 8),
        "s": st.sampled_from([128, 512, 1024, 2048]),
        "heads": st.sampled_from([8, 16, 64, 96]),
        "head_dim": st.sampled_from([64, 128]),
        "t": st.sampled_from([1, 2, 4, 8]),
    }
)


def gpt(heads: int, head_dim: int, vocab: int = 51200) -> ModelShape:
    """The paper's transformer: MLP of 4h, GeLU, dropout everywhere."""
    hidden = heads * head_dim
    return ModelShape(
        "gpt", 4, hidden, 4 * hidden, heads, heads, head_dim, vocab, 2048, gated_mlp=False, norm="layernorm",
        activation="gelu", dropout=0.1, attention_dropout=0.1,
    )  # fmt: skip


def paper_job(size: dict[str, int], **changes: Any) -> MemoryJob:
    """A job with Megatron's kernels and unfused attention, as the paper analyses it."""
    return MemoryJob(
        gpt(size["heads"], size["head_dim"]),
        ParallelConfig(tp=size["t"], sequence_parallel=changes.pop("sequence_parallel", False)),
        micro_batch=size["b"], sequence=size["s"], kernels="megatron", attention="eager", **changes,
    )  # fmt: skip


@given(SIZES)
def test_korthikanti_table_2(size: dict[str, int]) -> None:
    """Activations of one layer in bytes, arXiv 2205.05198 table 2."""
    b, s, a, t = size["b"], size["s"], size["heads"], size["t"]
    h = a * size["head_dim"]
    sbh, quadratic = s * b * h, 5 * a * s / h
    rows = [
        ({}, sbh * (10 + 24 / t + quadratic / t)),
        ({"recomputation": "selective"}, sbh * (10 + 24 / t)),
        ({"recomputation": "full"}, 2 * sbh),
    ]
    if t > 1:
        rows += [
            ({"sequence_parallel": True}, sbh * (34 / t + quadratic / t)),
            ({"sequence_parallel": True, "recomputation": "selective"}, sbh * 34 / t),
        ]
    else:
        rows.append(({}, sbh * (34 + quadratic)))
    for changes, formula in rows:
        assert layer_bytes(paper_job(size, **changes), moe=False) == formula, changes


@given(SIZES)
def test_korthikanti_section_4_3_head(size: dict[str, int]) -> None:
    """Final norm, output layer's input and fp32 logits: 4sbh/t (1 + v/h)."""
    job = paper_job(size)
    b, s, t, h, v = size["b"], size["s"], size["t"], job.shape.hidden, job.shape.vocab
    assert head_bytes(job) == 4 * s * b * h / t * (1 + v / h)


def test_korthikanti_equation_5_first_stage_holds_all_layers() -> None:
    """Under 1F1B the first of p stages holds p micro-batches of L/p layers, as many as the whole model."""
    shape = gpt(16, 64)
    job = MemoryJob(shape, ParallelConfig(pp=4), accumulation=16, kernels="megatron", attention="eager")
    kept = estimate(job).stages[0].moments["loss"]["activations"]
    embedding_dropout = job.micro_batch * job.sequence * shape.hidden * 4
    assert kept == shape.layers * layer_bytes(job, moe=False) + embedding_dropout


def flying(schedule: str, m: int, stage: int, chunks: int = 1) -> float:
    """Micro-batches in flight at one of four stages, of m."""
    shape = ModelShape.from_parameters("7.5B")
    job = MemoryJob(shape, ParallelConfig(pp=4), accumulation=m, schedule=schedule, chunks=chunks)  # type: ignore[arg-type]
    return in_flight(job, stage)


def test_micro_batches_in_flight() -> None:
    """The table of schedules: p = 4 stages."""
    assert [flying("gpipe", 16, r) for r in range(4)] == [16] * 4
    assert [flying("1f1b", 16, r) for r in range(4)] == [4, 3, 2, 1]
    assert [flying("1f1b", 2, r) for r in range(4)] == [2, 2, 2, 1]
    assert flying("interleaved", 16, 0, chunks=2) == 4 + 3 / 2
    assert [flying("zb-h1", 16, r) for r in range(4)] == [4] * 4
    assert [flying("zb-v", 16, r) for r in range(4)] == [4] * 4
    assert [flying("dualpipev", 16, r) for r in range(4)] == [4.5] * 4
