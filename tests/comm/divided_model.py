"""The small language model of tests/accelerator/reference.py, divided over a tensor-parallel group."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from npu_plugins.comm import ProcessMesh
from npu_plugins.tensor_parallel import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    shard_of,
)
from tests.accelerator.reference import HEADS, VOCABULARY, WIDTH, make_model


class DividedBlock(nn.Module):
    """Pre-norm attention and MLP: norms and the biases of the row layers are replicated."""

    def __init__(self, mesh: ProcessMesh) -> None:
        super().__init__()
        group = mesh.group("tp")
        self.heads = HEADS // mesh.size("tp")
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = MergedColumnParallelLinear(WIDTH, [WIDTH] * 3, group=group)
        self.out = RowParallelLinear(WIDTH, WIDTH, group=group)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = ColumnParallelLinear(WIDTH, 4 * WIDTH, group=group)
        self.down = RowParallelLinear(4 * WIDTH, WIDTH, group=group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[batch, seq, hidden]` → the same."""
        length = x.size(1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)))
        mask = torch.full((length, length), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
        scores = q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5 + mask
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class DividedLM(nn.Module):
    """TinyLM with the parameter names of the whole one; the output layer is replicated."""

    def __init__(self, mesh: ProcessMesh) -> None:
        super().__init__()
        self.embedding = VocabParallelEmbedding(VOCABULARY, WIDTH, group=mesh.group("tp"))
        self.blocks = nn.ModuleList(DividedBlock(mesh) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids `[batch, seq + 1]` → the loss in fp32."""
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


def make_divided(mesh: ProcessMesh) -> DividedLM:
    """The model of `make_model`, its parameters divided over the mesh."""
    model, whole = DividedLM(mesh), dict(make_model().named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shard = shard_of(parameter)
            parameter.copy_(whole[name] if shard is None else shard.take(whole[name]))
    return model.to(mesh.device)
