"""The Trainer's checkpoints: the state of training that is saved beside the model, and loaded again.

`save_state` writes the folder ``training_state`` of a checkpoint (`npu_plugins.checkpoint.state`), beside the
model; `load_state` brings weights, optimizer, learning rate and loss scale back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hf_integration.errors import TrainingInputError
from npu_plugins.checkpoint import CheckpointError
from npu_plugins.checkpoint.state import (
    INDEX_FILE,
    STATE_FOLDER,
    Trained,
    holds_state,
    load_training_state,
    save_training_state,
)
from npu_plugins.comm import ProcessMesh


@dataclass(frozen=True)
class WithoutDeepSpeed:
    """What is trained where there is no engine of DeepSpeed's."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: Any = None
    """torch's `GradScaler`, for fp16."""


def save_state(engine: Any, folder: Path, mesh: ProcessMesh | None, scheduler: Any = None) -> None:
    """Save the state of training beside the model that is saved in the same folder; every rank calls this.

    Args:
        engine: DeepSpeed's, or `WithoutDeepSpeed`.
        folder: of the checkpoint. The model's weights are there already: what they hold is not saved again.
        mesh: of the job; None for a single process.
        scheduler: the learning rate's, where the Trainer steps it; None where the engine does.

    Raises:
        TrainingInputError: on every rank, if one cannot save what it has.
    """
    _together(lambda: save_training_state(_trained(engine, mesh, scheduler), folder))


def load_state(engine: Any, folder: Path, mesh: ProcessMesh | None, scheduler: Any = None) -> None:
    """Load what `save_state` has saved, at any layout: weights, optimizer and all; every rank calls this.

    Args:
        engine: DeepSpeed's, or `WithoutDeepSpeed`, with weights of any values.
        folder: of the checkpoint.
        mesh: of the job; None for a single process.
        scheduler: as for `save_state`.

    Raises:
        TrainingInputError: on every rank, if the checkpoint has no such state, is damaged or is of another
            model; nothing has been loaded then.
    """
    if not holds_state(folder):
        raise TrainingInputError(
            f"{folder} holds no state of training to go on from (no {STATE_FOLDER}/{INDEX_FILE}); give a "
            "checkpoint that was saved without --save_only_model, or start from its weights with "
            "--model_name_or_path"
        )
    _together(lambda: load_training_state(_trained(engine, mesh, scheduler), folder))


def _trained(engine: Any, mesh: ProcessMesh | None, scheduler: Any) -> Trained:
    if isinstance(engine, WithoutDeepSpeed):
        return Trained(engine.model, engine.optimizer, mesh, None, scheduler, engine.scaler)
    return Trained.by_engine(engine, mesh, scheduler)


def _together(action: Callable[[], None]) -> None:
    """Run what fails on all ranks or on none, with this package's own error."""
    try:
        action()
    except CheckpointError as error:
        raise TrainingInputError(str(error)) from error
