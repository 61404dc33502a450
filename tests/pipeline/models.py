"""Small models as layers of a pipeline, their data, and their training in one process in plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LENGTH = 29, 16, 6


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Draw numbers on the CPU from a seed, and go on afterwards as if none had been drawn.

    `torch.manual_seed` would seed every kind of device too, 15 ms each time where one is not in use.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


class Embed(nn.Module):
    """Ids `[batch, seq]` → `[batch, seq, width]`."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        with drawn_from(seed):
            self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH) / 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.weight)


class Block(nn.Module):
    """Norm, two linear layers, dropout, and the residual connection."""

    def __init__(self, seed: int, dropout: float = 0.0) -> None:
        super().__init__()
        with drawn_from(seed):
            self.norm = nn.LayerNorm(WIDTH)
            self.up = nn.Linear(WIDTH, 2 * WIDTH)
            self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
            # Not 0: of such a parameter AdamW's steps are all there is, and rounding decides their signs.
            nn.init.normal_(self.norm.bias, std=0.25)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Head(nn.Module):
    """`[batch, seq, width]` → logits."""

    def __init__(self, seed: int = 2) -> None:
        super().__init__()
        with drawn_from(seed):
            self.linear = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def tied_head(embed: Embed, x: torch.Tensor) -> torch.Tensor:
    """The embedding's weight once more, as the output layer."""
    return F.linear(x, embed.weight)


def loss_fn(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy."""
    return F.cross_entropy(logits.float().flatten(0, -2), labels.flatten())


@dataclass(frozen=True)
class Case:
    """One training run, in a pipeline or not."""

    schedule: str = "1f1b"
    micro_batches: int = 4
    virtual_stages: int | None = None
    tied: bool = False
    clip: float = 0.0
    zero: int = 0
    precision: str = "fp32"
    recomputation: Any = "none"
    dropout: float = 0.0
    blocks: int = 6
    steps: int = 5
    optimizer: str = "AdamW"
    changing: bool = False
    """Whether lengths differ between micro-batches and steps, and the last micro-batch is smaller."""
    extra: tuple[tuple[str, Any], ...] = ()
    """Further keys of the DeepSpeed configuration."""

    @property
    def rate(self) -> float:
        """Learning rate."""
        return 1e-3 if self.optimizer == "AdamW" else 0.5

    def ds_config(self, dp: int = 1) -> dict[str, Any]:
        """The DeepSpeed configuration."""
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": self.micro_batches,
            "train_batch_size": 2 * self.micro_batches * dp,
            "gradient_clipping": self.clip,
            "zero_optimization": {"stage": self.zero},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 10**9,
            "pipeline": {
                "schedule": self.schedule,
                "recomputation": self.recomputation,
                "partition": "uniform",
            },
        }
        if self.virtual_stages is not None:
            config["pipeline"]["virtual_stages"] = self.virtual_stages
        if self.precision != "fp32":
            config[self.precision] = {"enabled": True}
        if self.precision == "fp16":
            config["fp16"]["loss_scale"] = 128.0
        return {**config, **dict(self.extra)}

    def batches(self, step: int, dp_rank: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The micro-batches of a step, of one replica."""
        for index in range(self.micro_batches):
            generator = torch.Generator().manual_seed(1000 * step + 10 * index + 7 * dp_rank)
            rows, length = 2, LENGTH
            if self.changing:
                length += (step + index) % 3
                rows = 1 if index == self.micro_batches - 1 else 2
            ids = torch.randint(VOCABULARY, (rows, length + 1), generator=generator)
            yield ids[:, :-1], ids[:, 1:]


def layers(case: Case) -> list[Any]:
    """The layers as DeepSpeed takes them."""
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    blocks = [LayerSpec(Block, 10 + index, case.dropout) for index in range(case.blocks)]
    if case.tied:
        head = TiedLayerSpec("embed", Embed, forward_fn=tied_head, tied_weight_attr="weight")
        return [TiedLayerSpec("embed", Embed, tied_weight_attr="weight"), *blocks, head]
    return [LayerSpec(Embed), *blocks, LayerSpec(Head)]


class Whole(nn.Module):
    """The same model in one piece, with the same parameter names."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        if case.tied:
            self.tied_modules = nn.ModuleDict({"embed": Embed()})
        else:
            self.add_module("0", Embed())
            self.add_module(str(case.blocks + 1), Head())
        for index in range(case.blocks):
            self.add_module(str(index + 1), Block(10 + index, case.dropout))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        first = self.tied_modules["embed"] if self.case.tied else self.get_submodule("0")
        x = first(ids)
        for index in range(self.case.blocks):
            x = self.get_submodule(str(index + 1))(x)
        return tied_head(first, x) if self.case.tied else self.get_submodule(str(self.case.blocks + 1))(x)


@dataclass
class Record:
    """What a training run showed."""

    losses: list[float]
    norms: list[float | None]
    gradients: dict[str, torch.Tensor]
    """Of the first step, before clipping."""
    parameters: dict[str, torch.Tensor]
    """After the last step."""


def make_optimizer(parameters: Any, case: Case) -> torch.optim.Optimizer:
    """The optimizer of both sides."""
    if case.optimizer == "SGD":
        return torch.optim.SGD(parameters, lr=case.rate)
    return torch.optim.AdamW(parameters, lr=case.rate, weight_decay=0.01)


def train_whole(case: Case, dp: int = 1) -> Record:
    """Train in one process, in fp32."""
    model = Whole(case)
    optimizer = make_optimizer(model.parameters(), case)
    record = Record([], [], {}, {})
    for step in range(case.steps):
        optimizer.zero_grad()
        total = 0.0
        batches = [batch for rank in range(dp) for batch in case.batches(step, rank)]
        for ids, labels in batches:
            loss = loss_fn(model(ids), labels) / len(batches)
            loss.backward()
            total += loss.item()
        if step == 0:
            record.gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        norm = nn.utils.clip_grad_norm_(model.parameters(), case.clip or float("inf"))
        record.norms.append(norm.item())
        optimizer.step()
        record.losses.append(total)
    record.parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    return record
