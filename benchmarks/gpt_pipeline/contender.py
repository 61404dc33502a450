"""What the rounds need of a contender."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import nn


class Contender(NamedTuple):
    """A pipeline on this rank, ready to train."""

    step: Callable[[], float | None]
    """Forward and backward of all micro-batches, the optimizer's step, and gradients dropped; returns the
    mean loss where this rank has it."""
    optimizer: torch.optim.Optimizer
    parameters: list[tuple[str, nn.Parameter]]
    """Of this rank, under the names that they have in one process."""

    def check(self, expected: tuple[float, dict[str, torch.Tensor]]) -> float:
        """Do the first step; return the largest error of loss and gradients, in largest entries."""
        found: dict[str, torch.Tensor] = {}

        def keep(*_: object) -> None:
            found.update({name: p.grad.clone() for name, p in self.parameters if p.grad is not None})

        hook = self.optimizer.register_step_pre_hook(keep)
        loss = self.step()
        hook.remove()
        names = {name for name, _ in self.parameters}
        if set(found) != names:
            raise SystemExit(f"no gradient came for {', '.join(sorted(names - set(found)))}")
        total, gradients = expected
        errors = [0.0 if loss is None else abs(loss - total) / total]
        errors += [_error(gradient, gradients[name]) for name, gradient in found.items()]
        return max(errors)


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def named(modules: Iterable[nn.Module]) -> list[tuple[str, nn.Parameter]]:
    """The parameters of a rank's modules."""
    return [pair for module in modules for pair in module.named_parameters()]
