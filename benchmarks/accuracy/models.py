"""The models to measure: transformers' own, and the same layers as a DeepSpeed pipeline."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from accuracy.case import Case


def hf_config(case: Case) -> Any:
    """Return transformers' configuration of the case's model."""
    fields = dict(case.hf_config())
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config._attn_implementation = "sdpa" if case.attention == "flash" else "eager"
    return config


def plain_model(case: Case) -> nn.Module:
    """Return transformers' model in fp32; DeepSpeed casts it."""
    model = AutoModelForCausalLM.from_config(hf_config(case), dtype=torch.float32)
    model.train()
    if case.recomputation == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


@lru_cache
def _rotary(hidden: int, heads: int, sequence: int, device: str, dtype: torch.dtype) -> Any:
    """Cosines and sines, made once a rank as transformers makes them once a forward pass."""
    from transformers import LlamaConfig

    rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=hidden, num_attention_heads=heads)).to(device)
    positions = torch.arange(sequence, device=device)[None]
    return rotary(torch.empty(1, dtype=dtype, device=device), positions)


class Embedding(nn.Module):
    """The first layer of the pipeline."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Embed tokens."""
        return self.tokens(ids)


class Block(nn.Module):
    """One of transformers' decoder layers, from hidden state to hidden state."""

    def __init__(self, config: Any, index: int) -> None:
        super().__init__()
        self.layer = LlamaDecoderLayer(config, index)
        self.sizes = (config.hidden_size, config.num_attention_heads)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the layer with causal attention over the whole sequence."""
        rotary = _rotary(*self.sizes, hidden.shape[1], str(hidden.device), hidden.dtype)
        out = self.layer(hidden, position_embeddings=rotary, attention_mask=None)
        return out[0] if isinstance(out, tuple) else out


class Head(nn.Module):
    """Final norm and output layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.out = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.vocab = config.vocab_size

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.out(self.norm(hidden))


def pipeline_model(case: Case) -> nn.Module:
    """Return the same Llama as a PipelineModule with equally many layers a stage."""
    from deepspeed.pipe import LayerSpec, PipelineModule

    config = hf_config(case)
    layers = [LayerSpec(Embedding, config)]
    layers += [LayerSpec(Block, config, index) for index in range(case.layers)]
    layers.append(LayerSpec(Head, config))

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return ForCausalLMLoss(logits, labels, case.vocab)

    return PipelineModule(
        layers,
        num_stages=case.pp,
        loss_fn=loss,
        partition_method="type:Block",
        activation_checkpoint_interval=1 if case.recomputation == "full" else 0,
    )
