"""One shape of the measured pair, and the tensors of it: full ones and what a rank holds of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class Shape:
    """A pair of layers hidden → intermediate → hidden on ``batch`` sequences of ``sequence`` tokens."""

    name: str
    hidden: int
    intermediate: int
    batch: int
    sequence: int
    steps: int
    """Steps timed at one go: enough that the clock does not count, few enough that what else the machine does
    meets two contenders of a round alike."""

    def __str__(self) -> str:
        return f"{self.hidden}→{self.intermediate}, {self.batch}×{self.sequence}"


LARGE = Shape("large", hidden=1024, intermediate=4096, batch=8, sequence=128, steps=1)
SMALL = Shape("small", hidden=128, intermediate=512, batch=4, sequence=32, steps=5)
SHAPES = {shape.name: shape for shape in (LARGE, SMALL)}


class Tensors(NamedTuple):
    """What every contender computes with; full matrices, laid out as ``torch.nn.Linear`` has them."""

    input: torch.Tensor  # [sequence, batch, hidden]
    output_gradient: torch.Tensor  # [sequence, batch, hidden]
    up: torch.Tensor  # [intermediate, hidden]
    down: torch.Tensor  # [hidden, intermediate]


class Result(NamedTuple):
    """What a step yields on one rank: whole output and input gradient, its share of the weight gradients."""

    output: torch.Tensor
    input_gradient: torch.Tensor
    up_gradient: torch.Tensor
    down_gradient: torch.Tensor


def draw(shape: Shape, device: torch.device) -> Tensors:
    """The same fp32 numbers on every rank, scaled so that outputs and gradients are of order one."""
    generator = torch.Generator().manual_seed(0)
    tokens = (shape.sequence, shape.batch, shape.hidden)

    def normal(*sizes: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator).mul_(scale).to(device)

    return Tensors(
        input=normal(*tokens),
        output_gradient=normal(*tokens),
        up=normal(shape.intermediate, shape.hidden, scale=shape.hidden**-0.5),
        down=normal(shape.hidden, shape.intermediate, scale=shape.intermediate**-0.5),
    )


def up_share(up: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """The rows of the first matrix that a rank holds: columns in the paper, which has x @ W."""
    return up.chunk(size, dim=0)[rank].clone()


def down_share(down: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """The columns of the second matrix that a rank holds (the paper's rows)."""
    return down.chunk(size, dim=1)[rank].clone()


def unsharded(tensors: Tensors, rank: int, size: int) -> Result:
    """The same step in fp64 in this process alone, cut to what the rank holds: what all must yield."""
    whole = Tensors(*(tensor.cpu().double() for tensor in tensors))
    leaves = [tensor.clone().requires_grad_() for tensor in (whole.input, whole.up, whole.down)]
    output = (leaves[0] @ leaves[1].t()) @ leaves[2].t()
    of_input, of_up, of_down = torch.autograd.grad(output, leaves, whole.output_gradient)
    return Result(output.detach(), of_input, up_share(of_up, rank, size), down_share(of_down, rank, size))


def largest_error(result: Result, expected: Result) -> float:
    """The largest difference from ``expected`` of any tensor, relative to that tensor's largest entry."""
    return max(
        float((got.detach().cpu().double() - right).abs().max() / right.abs().max())
        for got, right in zip(result, expected, strict=True)
    )
