"""A sampled continuation from a model that lies in pipeline stages, of which no rank can generate alone."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedTokenizerBase

from hf_integration.models import longest_sequence

TEMPERATURE = 0.8


def pipeline_continuation(
    trainer: Any, tokenizer: PreTrainedTokenizerBase, prompt: str, tokens: int, seed: int
) -> str:
    """Return ``prompt`` and up to ``tokens`` sampled ones; every rank must call this.

    Each token takes a whole forward pass: stages keep no keys and values.

    Args:
        trainer: an `NpuTrainer` with pipeline stages.
        tokenizer: of the model.
        prompt: text to start from.
        tokens: the most to add; fewer where the model's positions end, or the text does.
        seed: of the samples.
    """
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"].to(
        trainer.args.device
    )
    longest = longest_sequence(trainer.model.config)
    length = ids.shape[1] + tokens
    generator = torch.Generator().manual_seed(seed)
    while ids.shape[1] < (min(length, longest) if longest else length):
        logits = trainer.pipeline_logits({"input_ids": ids})[0, -1].float().cpu()
        chosen = torch.multinomial(torch.softmax(logits / TEMPERATURE, 0), 1, generator=generator)
        chosen = chosen.to(ids.device)
        dist.broadcast(chosen, 0)  # all replicas must stop at the same token, whatever they round
        ids = torch.cat([ids, chosen[None]], 1)
        if chosen.item() == tokenizer.eos_token_id:
            break
    return tokenizer.decode(ids[0], skip_special_tokens=True)
