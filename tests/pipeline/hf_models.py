"""Small Hugging Face decoders, their batches, and their training in one process by transformers alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.pipeline.models import Record

VOCABULARY, WINDOW, LENGTH, PAD = 61, 4, 12, 0
RATE = 1e-3
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma", "phi3", "gpt2")
MODULES = [f"transformers.models.{family}.modeling_{family}" for family in FAMILIES]
SHARED_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}
PER_LAYER = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}


def configuration(family: str, layers: int = 4, tied: bool = False, **changes: Any) -> Any:
    """The configuration of a small model; windows are shorter than its sequences."""
    import transformers

    sizes: dict[str, Any] = {**SHARED_SIZES, "num_hidden_layers": layers, "tie_word_embeddings": tied}
    if family == "gpt2":
        for name in ("intermediate_size", "num_key_value_heads"):
            del sizes[name]
        sizes |= {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
        return transformers.GPT2Config(**sizes | changes)
    if family == "qwen2":
        return transformers.Qwen2Config(**sizes | PER_LAYER | changes)
    if family == "qwen3":
        return transformers.Qwen3Config(**sizes | PER_LAYER | {"head_dim": 16} | changes)
    if family == "mistral":
        return transformers.MistralConfig(**sizes | {"sliding_window": WINDOW} | changes)
    if family == "phi3":
        return transformers.Phi3Config(**sizes | {"sliding_window": WINDOW} | changes)
    if family == "gemma":
        return transformers.GemmaConfig(**sizes | {"head_dim": 16} | changes)
    return transformers.LlamaConfig(**sizes | changes)


@dataclass(frozen=True)
class Split:
    """One training run of a decoder."""

    family: str
    tied: bool = False
    schedule: str = "1f1b"
    batch: str = "plain"
    """plain: ids and labels; padded: on the left, where the mask matters; packed: with position ids that
    begin anew; both: padded, with position ids of every second place; counted: padded, with the number of
    label tokens; varied: plain, of several lengths."""
    attention: str = "sdpa"
    layers: int = 4
    micro_batches: int = 4
    partition: str | tuple[int, ...] = "uniform"
    recomputation: Any = None
    precision: str = "fp32"
    steps: int = 3
    frozen: bool = False
    """Whether the embedding and the first decoder layer are."""
    changes: tuple[tuple[str, Any], ...] = ()
    """Of the configuration."""

    def configuration(self) -> Any:
        """The model's."""
        made = configuration(self.family, self.layers, self.tied, **dict(self.changes))
        made._attn_implementation = self.attention
        return made

    def ds_config(self, dp: int = 1) -> dict[str, Any]:
        """The DeepSpeed configuration."""
        return {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": self.micro_batches,
            "train_batch_size": 2 * self.micro_batches * dp,
            "gradient_clipping": 0.0,
            "steps_per_print": 10**9,
            "pipeline": {
                "schedule": self.schedule,
                "partition": list(self.partition) if isinstance(self.partition, tuple) else self.partition,
                **({} if self.recomputation is None else {"recomputation": self.recomputation}),
            },
            **({} if self.precision == "fp32" else {self.precision: {"enabled": True}}),
        }

    def batches(self, step: int, replicas: int = 1, replica: int = 0) -> Iterator[dict[str, Any]]:
        """The micro-batches of a step of one replica."""
        every = [
            [self._batch(1000 * step + 50 * rank + index) for index in range(self.micro_batches)]
            for rank in range(replicas)
        ]
        if self.batch == "counted":
            labels = [batch["labels"] for own in every for batch in own]
            tokens = sum(int((each[:, 1:] != -100).sum()) for each in labels)
            every = [[{**batch, "num_items_in_batch": tokens} for batch in own] for own in every]
        yield from every[replica]

    def _batch(self, seed: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        length = LENGTH - (seed % 5 if self.batch == "varied" else 0)
        ids = torch.randint(3, VOCABULARY, (2, length), generator=generator)
        batch = {"input_ids": ids, "labels": ids.clone()}
        if self.batch in ("padded", "both", "counted"):
            padding = torch.zeros_like(ids, dtype=torch.bool)
            padding[1, : 2 + seed % 3] = True
            batch["input_ids"] = ids.masked_fill(padding, PAD)
            batch["labels"] = ids.masked_fill(padding, -100)
            batch["attention_mask"] = (~padding).long()
            if self.batch == "both":
                batch["position_ids"] = (2 * torch.arange(length)).expand(2, -1)
        if self.batch == "packed":
            cut = 5 + seed % 3
            batch["position_ids"] = torch.cat([torch.arange(cut), torch.arange(LENGTH - cut)]).expand(2, -1)
            batch["labels"][:, cut] = -100
        return batch


def to(batch: dict[str, Any], device: torch.device | str) -> dict[str, Any]:
    """A batch on a device."""
    return {key: each.to(device) if isinstance(each, torch.Tensor) else each for key, each in batch.items()}


def freeze(model: Any) -> None:
    """Leave the embedding and the first decoder layer out of training."""
    for module in (model.get_input_embeddings(), model.model.layers[0]):
        module.requires_grad_(False)


def build_whole(case: Split, dtype: torch.dtype = torch.float32) -> Any:
    """The model in one piece, as transformers makes it under a seed."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(case.configuration(), dtype=dtype).train()


def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
    """The optimizer of both sides.

    Gradients that are zero but for rounding (of GPT-2's key biases) must not be blown up to whole updates.
    """
    return torch.optim.AdamW(parameters, lr=RATE, eps=1e-3)


def train_whole(case: Split, replicas: int = 1, device: torch.device | str = "cpu") -> Record:
    """Train in one process, in fp32, on the device whose rounding the pipeline has."""
    model = build_whole(case).to(device)
    if case.frozen:
        freeze(model)
    optimizer = make_optimizer(model.parameters())
    record = Record([], [], {}, {})
    for step in range(case.steps):
        optimizer.zero_grad()
        total = 0.0
        batches = [batch for rank in range(replicas) for batch in case.batches(step, replicas, rank)]
        for batch in batches:
            loss = model(**to(batch, device), use_cache=False).loss
            if case.batch != "counted":
                loss = loss / len(batches)
            loss.backward()
            total += loss.item()
        if step == 0:
            record.gradients = {
                name: p.grad.cpu().clone() for name, p in model.named_parameters() if p.grad is not None
            }
        record.norms.append(nn.utils.clip_grad_norm_(model.parameters(), float("inf")).item())
        optimizer.step()
        record.losses.append(total)
    record.parameters = {name: p.detach().cpu().clone() for name, p in model.named_parameters()}
    return record
