"""The training that ZeRO must reproduce, in one process, in plain torch, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 61
SEQUENCE = 16
WIDTH = 32
HEADS = 4
MICRO_BATCH = 4
RANKS = 2
STEPS = 10
SEED = 2023

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Recipe:
    """What a training run does, whoever runs it.

    clip: largest norm of the gradients, 0 for no clipping.
    loss_scale: of fp16, constant.
    warm_start: how many zero-gradient optimizer steps are run before training. DeepSpeed does one at stage 0
        in half precision, so that Adam's bias correction begins at step 2.
    width: of the model.
    """

    precision: str
    clip: float = 0.0
    lr: float = 1e-3
    weight_decay: float = 0.01
    loss_scale: float = 128.0
    warm_start: int = 0
    width: int = WIDTH

    def __post_init__(self) -> None:
        if self.precision not in DTYPES:
            raise ValueError(f"Precision {self.precision!r} is none of {sorted(DTYPES)}.")
        if self.clip < 0:
            raise ValueError(f"clip is a norm of at least 0, not {self.clip}.")

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return DTYPES[self.precision]


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, width // HEADS).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mask = torch.full((length, length), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
        scores = q @ k.transpose(-2, -1) / (width // HEADS) ** 0.5 + mask
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class TinyLM(nn.Module):
    """A small causal language model; `forward` gives the loss in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


def make_model(width: int = WIDTH) -> TinyLM:
    """The same fp32 model on every call."""
    torch.manual_seed(SEED)
    return TinyLM(width)


def batch(step: int, rank: int) -> torch.Tensor:
    """The tokens that a rank sees at a step: counts with a stride, so there is something to learn."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    start = torch.randint(VOCABULARY, (MICRO_BATCH, 1), generator=generator)
    stride = torch.randint(1, 5, (MICRO_BATCH, 1), generator=generator)
    return (start + stride * torch.arange(SEQUENCE + 1)) % VOCABULARY


def reference_losses(recipe: Recipe, steps: int = STEPS) -> list[float]:
    """The mean loss over all ranks' batches at each step of a single-process run."""
    model = make_model(recipe.width).to(recipe.dtype)
    masters = [nn.Parameter(p.detach().float().clone()) for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=recipe.lr, weight_decay=recipe.weight_decay)
    for _ in range(recipe.warm_start):
        for master in masters:
            master.grad = torch.zeros_like(master)
        optimizer.step()
    scale = recipe.loss_scale if recipe.precision == "fp16" else 1.0
    losses = []
    for step in range(steps):
        losses.append(_accumulate(model, masters, step, scale))
        if recipe.clip:
            norm = torch.linalg.vector_norm(torch.cat([m.grad.flatten() for m in masters]))
            for master in masters:
                master.grad.mul_(min(1.0, recipe.clip / (norm.item() + 1e-6)))
        optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(model.parameters(), masters, strict=True):
                parameter.copy_(master)
    return losses


def _accumulate(model: TinyLM, masters: list[nn.Parameter], step: int, scale: float) -> float:
    """Put the mean over ranks of the gradients into the masters, and return the mean loss."""
    for master in masters:
        master.grad = torch.zeros_like(master)
    total = 0.0
    for rank in range(RANKS):
        model.zero_grad()
        loss = model(batch(step, rank))
        (loss * scale).backward()
        total += loss.item() / RANKS
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad.add_(parameter.grad.float(), alpha=1.0 / (RANKS * scale))
    return total
