"""A training of a tiny model with DistributedDataParallel; one fault of `injected` can be put into it.

As a program, started by any launcher: ``torchrun --nproc_per_node 3 -m tests.diagnostics.faults.training
FAULT [--device cpu]``. The hang watch is the one that launched ranks have by themselves.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, LENGTH, ROWS = 64, 16, 8, 4
STEPS = 6
BACKENDS = {"npu": "hccl", "cpu": "gloo"}


class Block(nn.Module):
    """A residual block without attention: enough to have layers with names."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Add what the block makes of `hidden` [rows, length, width]."""
        return hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))


class TinyModel(nn.Module):
    """An embedding, two blocks and a head; gives the loss of predicting the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of token ids [rows, length]."""
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return nn.functional.cross_entropy(self.head(hidden)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@dataclass
class Job:
    """One rank of a training that goes well; faults are subclasses that change one of its steps."""

    device: str
    step: int = 0
    losses: list[float] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """Global rank."""
        return dist.get_rank()

    def prepare(self, model: nn.Module) -> None:
        """Change the model before it is wrapped."""

    def load(self) -> torch.Tensor:
        """Return token ids [rows, length] of this step and rank."""
        generator = torch.Generator().manual_seed(1000 * self.step + self.rank)
        return torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator).to(self.device)

    def check(self, model: nn.Module) -> None:
        """Look at the gradients, after the backward and before the optimizer."""

    def report(self, loss: torch.Tensor) -> None:
        """Take the mean of the loss over all ranks, and rank 0's learning rate."""
        figures = torch.stack([loss.detach(), torch.ones_like(loss)])
        dist.all_reduce(figures)
        dist.broadcast(torch.full((3,), 1e-2, device=self.device), 0)
        self.losses.append(float(figures[0] / figures[1]))

    def is_over(self) -> bool:
        """Whether this rank trains no more."""
        return self.step == STEPS

    def train(self) -> list[float]:
        """Train to the end; return the losses."""
        torch.manual_seed(1)
        module = TinyModel().to(self.device)
        self.prepare(module)
        model = DistributedDataParallel(module)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        while not self.is_over():
            loss = model(self.load())
            loss.backward()
            self.check(model)
            optimizer.step()
            optimizer.zero_grad()
            self.report(loss)
            self.step += 1
        return self.losses


def device_of_this_rank(kind: str) -> str:
    """Choose and return this rank's device of a kind, `npu` or `cpu`."""
    if kind == "cpu":
        return "cpu"
    number = int(os.environ["LOCAL_RANK"])
    torch.npu.set_device(number)
    return f"npu:{number}"


def main(arguments: list[str] | None = None) -> int:
    """Be one rank of a launched job; returns the exit status."""
    from tests.diagnostics.faults.injected import FAULTS
    from tests.diagnostics.faults.unready import UNREADY

    kinds: dict[str, Any] = {"none": Job, **FAULTS, **UNREADY}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault", choices=list(kinds))
    parser.add_argument("--device", choices=list(BACKENDS), default="npu")
    parser.add_argument("--local_rank", help="as the deepspeed launcher gives it; not read")
    options = parser.parse_args(arguments)
    device = device_of_this_rank(options.device)
    if not dist.is_initialized():
        limit = float(os.environ.get("HCCL_TIMEOUT", "60"))
        dist.init_process_group(BACKENDS[options.device], timeout=timedelta(seconds=limit + 60))
    losses = kinds[options.fault](device).train()
    print(f"rank {dist.get_rank()}: {len(losses)} steps", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
