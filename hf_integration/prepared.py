"""What a training loop of one's own hands to ``prepare``, sorted and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from accelerate.utils import DummyOptim, DummyScheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from hf_integration.errors import TrainingInputError


class Given(NamedTuple):
    """The arguments of ``prepare`` by what they are; None for what is not there."""

    model: PreTrainedModel | None
    optimizer: torch.optim.Optimizer | DummyOptim | None
    scheduler: LRScheduler | DummyScheduler | None
    loader: DataLoader | None
    """The first one, which is trained on."""

    @property
    def own_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer, unless it only stands for the one of the configuration."""
        return None if isinstance(self.optimizer, DummyOptim) else self.optimizer

    @property
    def batch_size(self) -> int:
        """Rows of a batch of one replica.

        Raises:
            TrainingInputError: there is no loader, or it says no size.
        """
        sampler = getattr(self.loader, "batch_sampler", None)
        rows = getattr(self.loader, "batch_size", None) or getattr(sampler, "batch_size", None)
        if rows is None:
            raise TrainingInputError(
                "prepare got no loader with a batch size, which the engine must know; give the training "
                "loader together with the model"
            )
        return int(rows)

    def check_against(self, config: Mapping[str, Any]) -> None:
        """Refuse an optimizer, or a scheduler, both here and in the DeepSpeed configuration, or a gap there.

        Raises:
            TrainingInputError: with what to prepare instead.
        """
        for name, given, stand_in in (
            ("optimizer", self.optimizer, DummyOptim),
            ("scheduler", self.scheduler, DummyScheduler),
        ):
            if (name in config) == isinstance(given, stand_in):
                continue
            has, wanted = (
                ("has", f"accelerate's {stand_in.__name__} in place of one of your own")
                if name in config
                else ("has no", f"one of your own in place of a {stand_in.__name__}")
            )
            raise TrainingInputError(f'the DeepSpeed configuration {has} "{name}"; prepare {wanted}')


def sort_out(args: tuple[Any, ...]) -> Given:
    """Return the arguments of ``prepare`` by what they are.

    Raises:
        TrainingInputError: one is something else, or there is more than one of a kind, or one without the
            other that it belongs to.
    """
    kinds = {
        "model": PreTrainedModel,
        "optimizer": (torch.optim.Optimizer, DummyOptim),
        "scheduler": (LRScheduler, DummyScheduler),
        "loader": DataLoader,
    }
    found: dict[str, list[Any]] = {name: [] for name in kinds}
    for each in args:
        names = [name for name, kind in kinds.items() if isinstance(each, kind)]
        if not names:
            raise TrainingInputError(
                f"prepare got a {type(each).__name__}; give one model of transformers, an optimizer, a "
                "scheduler and loaders"
            )
        found[names[0]].append(each)
    for name in ("model", "optimizer", "scheduler"):
        if len(found[name]) > 1:
            raise TrainingInputError(f"prepare got {len(found[name])} {name}s; give one")
    for name, other in (("optimizer", "model"), ("scheduler", "optimizer")):
        if found[name] and not found[other]:
            raise TrainingInputError(f"prepare got the {name} without its {other}; give them at once")
    return Given(*(each[0] if each else None for each in found.values()))
