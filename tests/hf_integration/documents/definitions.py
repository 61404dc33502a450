"""What the documents' scripts leave to the reader: a model, data and a loss that says what it was."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.utils.data import Dataset

num_epochs = 2


class MyModel(nn.Module):
    """A small network with the same weights wherever it is made."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Return the outputs `[batch, 1]`, or the loss where there are labels."""
        outputs = self.outer(torch.tanh(self.inner(inputs)))
        return outputs if labels is None else criterion(outputs, labels)


class MyDataset(Dataset):
    """Pairs (inputs `[4]`, labels `[1]`), or with ``named`` dicts of them."""

    def __init__(self, named: bool = False) -> None:
        generator = torch.Generator().manual_seed(6)
        self.inputs = torch.randn(128, 4, generator=generator)
        self.labels = torch.randn(128, 1, generator=generator)
        self.named = named

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor] | dict[str, torch.Tensor]:
        pair = (self.inputs[index], self.labels[index])
        return {"inputs": pair[0], "labels": pair[1]} if self.named else pair


def criterion(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the squared error, and print it in one piece with the device it was computed on."""
    loss = nn.functional.mse_loss(outputs.float(), labels)
    os.write(1, f"loss {outputs.device} {loss.item()!r}\n".encode())
    return loss
