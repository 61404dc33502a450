"""ModelShape: a decoder's sizes, and the tensors and parameter counts that follow from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ds_configs.errors import DsConfigError
from ds_configs.parallel import ParallelConfig

Norm = Literal["rmsnorm", "rmsnorm_fp32", "layernorm", "layernorm_no_bias", "none"]
"""Kind of a normalisation: its parameters a channel are 1, 1, 2, 1 and 0. "rmsnorm_fp32" multiplies by its
weight before it leaves fp32, which keeps a wider tensor for the backward pass."""
QkNorm = Literal["none", "per_head", "each_head", "full"]
"""Normalised queries and keys: not at all, one vector of head_dim, one for each head, or over all heads."""

MOST_LAYERS = 100_000
"""More than any model has: a slip of the keyboard, and each layer is counted one by one."""


@dataclass(frozen=True)
class MlaShape:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1): widths of the latent projections."""

    kv_rank: int
    """Width of the latent vector that keys and values are made from."""
    nope_dim: int
    """Width of a head's query and key without position."""
    rope_dim: int
    """Width of a head's query and key with rotary position."""
    value_dim: int
    """Width of a head's value."""
    q_rank: int | None = None
    """Width of the latent query; None: queries come straight from the hidden state."""

    def __post_init__(self) -> None:
        _check_positive(self, "kv_rank", "nope_dim", "rope_dim", "value_dim")


@dataclass(frozen=True)
class MoeShape:
    """A mixture of experts in place of the MLP."""

    experts: int
    """Routed experts of a layer."""
    top_k: int
    """Routed experts that each token visits."""
    expert_ffn: int
    """Inner width of one routed expert."""
    shared_ffn: int = 0
    """Inner width of the experts that every token visits, together; 0: none."""
    shared_gate: bool = False
    """Whether a learned gate weighs the shared expert (qwen2_moe)."""
    router_bias: bool = False
    """Whether the router has a bias that is trained."""
    expert_bias: bool = False
    """Whether the experts' matrices have biases."""
    dense_layers: frozenset[int] = frozenset()
    """Layers that keep an ordinary MLP."""

    def __post_init__(self) -> None:
        _check_positive(self, "experts", "top_k", "expert_ffn")
        if self.top_k > self.experts:
            raise DsConfigError(
                f"each token visits {self.top_k} of {self.experts} experts; top_k must not exceed experts"
            )


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only transformer, in the field's usual terms.

    Raises:
        DsConfigError: a size is no positive integer, or heads do not group.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    gated_mlp: bool = True
    """Whether the MLP multiplies a gate onto its inner activations (SwiGLU): three matrices, not two."""
    tied_embeddings: bool = False
    learned_positions: int = 0
    """Rows of a learned position table; 0: rotary, ALiBi or none."""
    norm: Norm = "rmsnorm"
    activation: str = "silu"
    """Activation of the MLP, by transformers' name."""
    dropout: float = 0.0
    """Probability of dropping an element of what a block adds to the residual stream."""
    attention_dropout: float = 0.0
    norms_per_layer: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    attention_bias: bool = False
    """Whether the query, key and value projections have biases."""
    attention_out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    """Whether the output layer onto the vocabulary has a bias."""
    qk_norm: QkNorm = "none"
    fused_qkv: bool = False
    """Whether one matrix makes queries, keys and values, so that none of the three can be freed alone."""
    softmax_fp32: bool = True
    """Whether unfused attention takes its softmax in fp32."""
    attention_sinks: bool = False
    """Whether each head has one learned attention sink (gpt_oss)."""
    embedding_width: int | None = None
    """Width of the token embedding where it differs from hidden (opt-350m): two projections join them."""
    mla: MlaShape | None = None
    moe: MoeShape | None = None
    remainder: int = 0
    """Parameters beyond the layout's own, so that `from_parameters` gives exactly what was asked for."""
    notes: tuple[str, ...] = ()
    """What the reader of the configuration should know, such as a guess about an unknown model type."""

    def __post_init__(self) -> None:
        names = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "max_positions")
        _check_positive(self, *names)
        if self.layers > MOST_LAYERS:
            raise DsConfigError(f"the model's layers is {self.layers}; give at most {MOST_LAYERS}")
        if self.heads % self.kv_heads:
            raise DsConfigError(
                f"{self.heads} attention heads do not share {self.kv_heads} key-value heads evenly; "
                "num_key_value_heads must divide num_attention_heads"
            )

    @classmethod
    def from_hf_config(cls, source: str | os.PathLike[str]) -> ModelShape:
        """Read a Hugging Face ``config.json``, or the directory that holds one.

        Raises:
            DsConfigError: there is none, it is not JSON, or it describes no decoder that is known here.
        """
        from ds_configs.models.hf_config import read_hf_config

        return read_hf_config(source)

    @classmethod
    def from_parameters(cls, text: str, longest: int = 0) -> ModelShape:
        """Return a GPT of exactly ``text`` parameters, such as "7.5B"; see ``ds_configs.models.by_size``.

        It takes sequences of ``longest`` tokens, and of 2,048 at least.

        Raises:
            DsConfigError: ``text`` is no number of parameters, or too few for a model.
        """
        from ds_configs.models.by_size import POSITIONS, shape_of_size

        return shape_of_size(text, max(POSITIONS, longest))

    def check_job(self, parallel: ParallelConfig, sequence: int, chunks: int = 1) -> None:
        """Check that ``parallel`` can divide the model, and that it takes ``sequence`` tokens.

        Raises:
            DsConfigError: it cannot, or does not; the message says what to change.
        """
        if sequence > self.max_positions:
            raise DsConfigError(
                f"a sequence of {sequence} tokens exceeds the {self.max_positions} positions of {self.name}; "
                "shorten it, or raise max_position_embeddings in its config.json"
            )
        if self.heads % parallel.tp:
            raise DsConfigError(
                f"tp={parallel.tp} does not divide the {self.heads} attention heads of {self.name}; choose a "
                "tp that does"
            )
        if parallel.pp * chunks > self.layers:
            raise DsConfigError(
                f"pp={parallel.pp} × {chunks} chunks need as many layers, but {self.name} has {self.layers}; "
                "lower one of them"
            )
        if parallel.ep > 1 and (self.moe is None or self.moe.experts % parallel.ep):
            experts = "no experts" if self.moe is None else f"{self.moe.experts} experts"
            raise DsConfigError(
                f"ep={parallel.ep} cannot divide {self.name}, which has {experts}; set ep to 1"
            )

    @cached_property
    def _counts(self) -> tuple[int, tuple[int, ...], int]:
        from ds_configs.models.tensors import embedding_tensors, head_tensors, layer_tensors

        def total(tensors: object) -> int:
            return sum(tensor.numel for tensor in tensors)  # type: ignore[attr-defined]

        dense, sparse = total(layer_tensors(self, moe=False)), total(layer_tensors(self, moe=True))
        layers = tuple(sparse if self.is_moe_layer(index) else dense for index in range(self.layers))
        return total(embedding_tensors(self)), layers, total(head_tensors(self))

    def is_moe_layer(self, layer: int) -> bool:
        """Say whether ``layer`` (0 is nearest the input) has experts."""
        return self.moe is not None and layer not in self.moe.dense_layers

    @property
    def moe_layers(self) -> int:
        """Number of layers with experts."""
        return sum(self.is_moe_layer(layer) for layer in range(self.layers))

    def parameters(self) -> int:
        """Return the number of trained parameters; a tied output layer counts once."""
        embedding, layers, head = self._counts
        return embedding + sum(layers) + head

    def layer_parameters(self, layer: int = -1) -> int:
        """Return the parameters of one decoder layer; the last one unless told (the first may be dense)."""
        return self._counts[1][layer]

    def embedding_parameters(self) -> int:
        """Return the parameters in front of the layers: tokens, learned positions, their norm."""
        return self._counts[0]

    def head_parameters(self) -> int:
        """Return the parameters behind the layers: final norm, and the output layer unless it is tied."""
        return self._counts[2]

    def active_parameters(self) -> int:
        """Return the parameters that one token visits: all but the routed experts it is not sent to."""
        if self.moe is None:
            return self.parameters()
        matrices = 3 if self.gated_mlp else 2
        expert = matrices * self.hidden * self.moe.expert_ffn
        if self.moe.expert_bias:
            expert += (matrices - 1) * self.moe.expert_ffn + self.hidden
        return self.parameters() - self.moe_layers * (self.moe.experts - self.moe.top_k) * expert


def _check_positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DsConfigError(f"the model's {name} is {value!r}; it must be a whole number, 1 or more")
