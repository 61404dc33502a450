"""Imports the models of the tests' architectures, for the nursery: its ranks need not do it again."""

from __future__ import annotations

from transformers import (  # noqa: F401
    AutoModelForCausalLM,
    GemmaForCausalLM,
    GPT2LMHeadModel,
    GraniteForCausalLM,
    LlamaForCausalLM,
    MiniCPM3ForCausalLM,
    MistralForCausalLM,
    MixtralForCausalLM,
    Olmo2ForCausalLM,
    Phi3ForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeForCausalLM,
)
