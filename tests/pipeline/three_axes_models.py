"""Small Hugging Face decoders, their data, and their training as they are, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

VOCABULARY, LENGTH = 61, 9
"""A vocabulary that two ranks do not divide."""

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama": COMMON,
    "Qwen2": COMMON,
    "Qwen3": {**COMMON, "head_dim": 8},
    "Mistral": {**COMMON, "sliding_window": 4},
    "Gemma": {**COMMON, "head_dim": 8},
    "Phi3": {**COMMON, "sliding_window": 4},
    "GPT2": {
        **{key: COMMON[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")},
        "n_embd": 32,
        "n_layer": 4,
        "n_head": 4,
        "n_positions": 32,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    },
}


@dataclass(frozen=True)
class Run:
    """One training run."""

    family: str = "Llama"
    tied: bool = True
    schedule: str = "1f1b"
    optimizer: str = "SGD"
    clip: float = 0.3
    zero: int = 0
    precision: str = "fp32"
    recomputation: str = "none"
    gather_logits: bool = True
    micro_batches: int = 4
    steps: int = 5
    dropout: float = 0.0
    """Of GPT-2, everywhere."""

    def config(self) -> Any:
        """The model's configuration."""
        import transformers

        values = {**CONFIGS[self.family], "tie_word_embeddings": self.tied}
        values |= {key: self.dropout for key in values if key.endswith("_pdrop")}
        return getattr(transformers, f"{self.family}Config")(**values)

    def whole(self) -> Any:
        """The model."""
        from transformers import AutoModelForCausalLM

        torch.manual_seed(3)
        return AutoModelForCausalLM.from_config(self.config()).train()

    def make_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """The optimizer of both sides; with SGD a wrong norm or gradient shows in proportion."""
        if self.optimizer == "SGD":
            return torch.optim.SGD(parameters, lr=0.5)
        return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)

    def ds_config(self, dp: int) -> dict[str, Any]:
        """The DeepSpeed configuration."""
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": self.micro_batches,
            "train_batch_size": 2 * self.micro_batches * dp,
            "gradient_clipping": self.clip,
            "zero_optimization": {"stage": self.zero},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 10**9,
            "pipeline": {"schedule": self.schedule, "recomputation": self.recomputation},
        }
        if self.precision != "fp32":
            config[self.precision] = {"enabled": True}
        if self.precision == "fp16":
            config["fp16"]["loss_scale"] = 128.0
        return config

    def batches(self, step: int, replica: int) -> Iterator[dict[str, torch.Tensor]]:
        """The micro-batches of a step, of one replica; some rows are padded, and padding has no labels."""
        for index in range(self.micro_batches):
            generator = torch.Generator().manual_seed(1000 * step + 10 * index + 7 * replica)
            ids = torch.randint(VOCABULARY, (2, LENGTH), generator=generator)
            mask = torch.ones_like(ids)
            mask[1, LENGTH - 2 - index % 2 :] = 0
            yield {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@dataclass
class Trained:
    """What a run showed."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, torch.Tensor]
    """Afterwards, by the model's own names."""


def train_plain(run: Run, dp: int) -> Trained:
    """Train the model as it is, in fp32, on what all replicas read."""
    model = run.whole()
    optimizer = run.make_optimizer(model.parameters())
    trained = Trained([], [], {})
    for step in range(run.steps):
        optimizer.zero_grad()
        batches = [batch for replica in range(dp) for batch in run.batches(step, replica)]
        total = 0.0
        for batch in batches:
            loss = model(**batch).loss / len(batches)
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip or float("inf"))
        optimizer.step()
        trained.losses.append(total)
        trained.norms.append(norm.item())
    trained.parameters = {name: each.detach().clone() for name, each in model.named_parameters()}
    return trained
