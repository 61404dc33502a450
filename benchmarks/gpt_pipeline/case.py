"""The measured model and its data, the same for everyone, and what one process makes of them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, BLOCKS, VOCABULARY = 256, 4, 8, 512
LENGTH, ROWS, MICRO_BATCHES = 128, 4, 8
RANKS = 2
LEARNING_RATE = 0.01

CUTS = {1: (0, 5, 10), 2: (0, 3, 5, 7, 10)}
"""By stages on each rank: where the ten layers (embedding, blocks, head) are cut, for all contenders."""


class Embed(nn.Module):
    """Ids `[batch, seq]` → `[batch, seq, width]`."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.tokens = nn.Embedding(VOCABULARY, WIDTH)
            self.positions = nn.Embedding(LENGTH, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tokens(ids) + self.positions.weight[: ids.size(1)]


class Block(nn.Module):
    """A GPT-2 layer without dropout: attention and MLP, each behind a norm."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, HEADS, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each [batch, heads, seq, width / heads]
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Head(nn.Module):
    """`[batch, seq, width]` → logits."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x))


LAYERS: tuple[type[nn.Module], ...] = (Embed, *[Block] * BLOCKS, Head)


class Layers(nn.Module):
    """Some of the layers in a row, named by their place in the model."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__()
        for index in range(start, stop):
            self.add_module(str(index), LAYERS[index](index))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = layer(x)
        return x


def loss_fn(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """The ids and labels of all micro-batches together, `[micro-batches × rows, seq]`; always the same."""
    ids = torch.randint(
        VOCABULARY, (MICRO_BATCHES * ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(0)
    )
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def micro_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same, one pair for each micro-batch."""
    ids, labels = batch()
    return list(zip(ids.split(ROWS), labels.split(ROWS), strict=True))


def optimizer_of(parameters: object) -> torch.optim.Optimizer:
    """The same for everyone, and cheap: what is compared is the pipeline."""
    return torch.optim.SGD(parameters, lr=LEARNING_RATE)  # type: ignore[arg-type]


def in_one_process() -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of the first step, computed in this process alone."""
    model, total = Layers(0, len(LAYERS)), 0.0
    for ids, labels in micro_batches():
        loss = loss_fn(model(ids), labels) / MICRO_BATCHES
        loss.backward()
        total += loss.item()
    return total, {name: parameter.grad for name, parameter in model.named_parameters()}
