"""Tiny models of the architectures, and how they train in one process and on ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

BATCH, SEQUENCE, STEPS, RATE = 2, 9, 3, 0.1
VOCABULARY = 67  # no number of ranks divides it

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Case:
    """One architecture with the config values that matter."""

    name: str
    config_class: str
    changes: dict[str, Any] = field(default_factory=dict)

    def config(self) -> Any:
        """The transformers config."""
        import transformers

        sizes = GPT2_SIZES if self.config_class == "GPT2Config" else SIZES
        return getattr(transformers, self.config_class)(**{**sizes, **self.changes})


PRELOAD = ("accelerate", "tests.tensor_parallel.modeling")
"""What every rank needs, imported once: half a second a model family."""

LISTED = 12
"""How many of the cases are of the architectures promised; the others show further styles."""

CASES = [
    Case("llama", "LlamaConfig"),
    Case("llama tied, biases, 2 kv heads", "LlamaConfig", {
        "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2,
    }),
    Case("llama, 1 kv head", "LlamaConfig", {"num_key_value_heads": 1}),
    Case("qwen2, 2 kv heads (biases)", "Qwen2Config", {"num_key_value_heads": 2}),
    Case("qwen2 tied", "Qwen2Config", {"tie_word_embeddings": True}),
    Case("qwen3 (norms of heads), 2 kv heads", "Qwen3Config", {"head_dim": 16, "num_key_value_heads": 2}),
    Case("mistral, sliding window", "MistralConfig", {"sliding_window": 4, "head_dim": 8}),
    Case("gemma (tied, scaled), 1 kv head", "GemmaConfig", {"head_dim": 16, "num_key_value_heads": 1}),
    Case("phi3 (merged)", "Phi3Config"),
    Case("phi3 tied", "Phi3Config", {"tie_word_embeddings": True}),
    Case("gpt2 (merged, tied, biases)", "GPT2Config"),
    Case("gpt2 untied", "GPT2Config", {"tie_word_embeddings": False, "n_inner": 64}),
    Case("mixtral (experts)", "MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    Case("qwen3 moe, one dense layer", "Qwen3MoeConfig", {
        "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "mlp_only_layers": [0],
    }),
    Case("olmo2 (gathered projections)", "Olmo2Config"),
    Case("minicpm3 (latent attention)", "MiniCPM3Config", {
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
        "head_dim": 4,
    }),
    Case("granite", "GraniteConfig"),
]  # fmt: skip


def make_model(case: Case, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """The full model, every parameter random, so that no mistake hides behind zeros and ones."""
    from transformers import AutoModelForCausalLM

    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}  # the others have no fp64
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(case.config(), dtype=dtype, **eager)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def batch(step: int) -> dict[str, torch.Tensor]:
    """Ids with padding and ignored labels."""
    ids = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(step))
    ids[0, 0] = 0  # the padding id, whose embedding gets no gradient
    labels = ids.clone()
    labels[1, :3] = -100
    return {"input_ids": ids, "labels": labels}


def train(
    model: Any, gradient: Callable[[str, nn.Parameter], torch.Tensor], steps: int = STEPS
) -> tuple[list[float], list[dict[str, torch.Tensor]]]:
    """SGD for some steps: the losses and, by name, all gradients of each step."""
    device = next(model.parameters()).device
    losses, gradients = [], []
    for step in range(steps):
        model.zero_grad()
        output = model(**{key: value.to(device) for key, value in batch(step).items()})
        output.loss.backward()
        losses.append(output.loss.item())
        gradients.append({name: gradient(name, p) for name, p in model.named_parameters()})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=RATE)
    return losses, gradients


def worst_difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> tuple[float, str]:
    """The largest difference of a tensor, in units of its largest value, and the tensor's name."""
    assert found.keys() == expected.keys()
    differences = []
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        scale = value.abs().max().clamp(min=1e-30)
        differences.append((((found[name] - value).abs().max() / scale).item(), name))
    return max(differences)
