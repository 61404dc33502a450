"""The parameter tensors of a ModelShape, as transformers holds them, and how each is divided over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from ds_configs.models.shape import MlaShape, ModelShape, MoeShape

Split = Literal["none", "column", "row", "vocab", "expert"]
"""How tensor or expert parallelism divides a tensor (Shoeybi et al. 2019, arXiv 1909.08053 §3): by its output
features, its input features, its vocabulary rows, its experts, or not at all."""


@dataclass(frozen=True)
class Tensor:
    """One parameter tensor."""

    name: str
    shape: tuple[int, ...]
    split: Split = "none"

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def embedding_tensors(shape: ModelShape) -> list[Tensor]:
    """Return what stands in front of the layers."""
    width = shape.embedding_width or shape.hidden
    tensors = [Tensor("embed_tokens", (shape.vocab, width), "vocab")]
    if shape.learned_positions:
        tensors.append(Tensor("embed_positions", (shape.learned_positions, shape.hidden)))
    if width != shape.hidden:
        tensors.append(Tensor("project_in", (shape.hidden, width)))
    if shape.embedding_norm:
        tensors += _norm(shape, "embedding_norm", shape.hidden)
    return tensors


def head_tensors(shape: ModelShape) -> list[Tensor]:
    """Return what stands behind the layers."""
    width = shape.embedding_width or shape.hidden
    tensors = _norm(shape, "final_norm", shape.hidden) if shape.final_norm else []
    if width != shape.hidden:
        tensors.append(Tensor("project_out", (width, shape.hidden)))
    if not shape.tied_embeddings:
        tensors.append(Tensor("lm_head", (shape.vocab, width), "vocab"))
    if shape.head_bias:
        tensors.append(Tensor("lm_head.bias", (shape.vocab,), "vocab"))
    if shape.remainder:
        tensors.append(Tensor("remainder", (shape.remainder,), "column"))
    return tensors


def layer_tensors(shape: ModelShape, moe: bool) -> list[Tensor]:
    """Return one decoder layer's tensors, with experts or with an ordinary MLP."""
    tensors = _mla(shape, shape.mla) if shape.mla else _attention(shape)
    if shape.attention_sinks:
        tensors.append(Tensor("sinks", (shape.heads,), "column"))
    if moe and shape.moe:
        tensors += _experts(shape, shape.moe)
    else:
        tensors += _mlp(shape, "mlp", shape.ffn, shape.mlp_bias)
    for index in range(shape.norms_per_layer):
        tensors += _norm(shape, f"norm{index}", shape.hidden)
    return tensors


def _norm(shape: ModelShape, name: str, width: int) -> list[Tensor]:
    vectors = {"layernorm": ("weight", "bias"), "none": ()}.get(shape.norm, ("weight",))
    return [Tensor(f"{name}.{vector}", (width,)) for vector in vectors]


def _linear(name: str, rows: int, columns: int, bias: bool, split: Split) -> list[Tensor]:
    tensors = [Tensor(f"{name}.weight", (rows, columns), split)]
    if bias:  # a row-split layer adds its bias after the all-reduce: every rank holds it whole
        tensors.append(Tensor(f"{name}.bias", (rows,), "none" if split == "row" else split))
    return tensors


def _attention(shape: ModelShape) -> list[Tensor]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tensors: list[Tensor] = []
    for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        tensors += _linear(name, rows, shape.hidden, shape.attention_bias, "column")
    tensors += _linear("o_proj", shape.hidden, queries, shape.attention_out_bias, "row")
    widths = {
        "none": (),
        "per_head": (shape.head_dim,) * 2,
        "each_head": (shape.head_dim,) * (shape.heads + shape.kv_heads),
        "full": (queries, keys),
    }[shape.qk_norm]
    for index, width in enumerate(widths):
        if shape.qk_norm == "each_head":  # these are without bias even where other norms have one
            tensors.append(Tensor(f"qk_norm{index}.weight", (width,)))
        else:
            tensors += _norm(shape, f"qk_norm{index}", width)
    return tensors


def _mla(shape: ModelShape, mla: MlaShape) -> list[Tensor]:
    queries = shape.heads * (mla.nope_dim + mla.rope_dim)
    tensors: list[Tensor] = []
    if mla.q_rank:
        tensors += _linear("q_a_proj", mla.q_rank, shape.hidden, shape.attention_bias, "none")
        tensors += _norm(shape, "q_a_norm", mla.q_rank)
        tensors += _linear("q_b_proj", queries, mla.q_rank, False, "column")
    else:
        tensors += _linear("q_proj", queries, shape.hidden, False, "column")
    latent = mla.kv_rank + mla.rope_dim
    tensors += _linear("kv_a_proj", latent, shape.hidden, shape.attention_bias, "none")
    tensors += _norm(shape, "kv_a_norm", mla.kv_rank)
    tensors += _linear(
        "kv_b_proj", shape.heads * (mla.nope_dim + mla.value_dim), mla.kv_rank, False, "column"
    )
    out = shape.heads * mla.value_dim
    return tensors + _linear("o_proj", shape.hidden, out, shape.attention_out_bias, "row")


def _mlp(shape: ModelShape, name: str, width: int, bias: bool) -> list[Tensor]:
    tensors: list[Tensor] = []
    if shape.gated_mlp:
        tensors += _linear(f"{name}.gate", width, shape.hidden, bias, "column")
    tensors += _linear(f"{name}.up", width, shape.hidden, bias, "column")
    return tensors + _linear(f"{name}.down", shape.hidden, width, bias, "row")


def _experts(shape: ModelShape, moe: MoeShape) -> list[Tensor]:
    inner = (2 if shape.gated_mlp else 1) * moe.expert_ffn
    tensors = [
        Tensor("router.weight", (moe.experts, shape.hidden)),
        Tensor("experts.up", (moe.experts, inner, shape.hidden), "expert"),
        Tensor("experts.down", (moe.experts, shape.hidden, moe.expert_ffn), "expert"),
    ]
    if moe.router_bias:
        tensors.append(Tensor("router.bias", (moe.experts,)))
    if moe.expert_bias:
        tensors.append(Tensor("experts.up_bias", (moe.experts, inner), "expert"))
        tensors.append(Tensor("experts.down_bias", (moe.experts, shape.hidden), "expert"))
    if moe.shared_ffn:
        tensors += _mlp(shape, "shared", moe.shared_ffn, False)
    if moe.shared_gate:
        tensors.append(Tensor("shared_gate", (1, shape.hidden)))
    return tensors
