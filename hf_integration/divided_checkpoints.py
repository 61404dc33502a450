"""The Trainer's checkpoints: the state of training that is saved beside the model, and loaded again.

`save_state` writes the folder ``training_state`` of a checkpoint (`npu_plugins.checkpoint.state`), beside the
model; `load_state` brings weights, optimizer, learning rate and loss scale back.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers.trainer import SCHEDULER_NAME

from ds_configs.parallel import ParallelConfig
from hf_integration.errors import TrainingInputError
from npu_plugins.comm import ProcessMesh

LAYOUT_FILE = "parallel_layout.json"


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
    assert mesh is not None
    engine.save_checkpoint(str(folder))
    if mesh.global_rank == 0:
        (folder / LAYOUT_FILE).write_text(json.dumps(asdict(mesh.config), indent=2) + "\n", encoding="utf-8")
        if scheduler is not None:
            torch.save(scheduler.state_dict(), folder / SCHEDULER_NAME)
    dist.barrier()


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
    assert mesh is not None
    layout = mesh.config
    if not (folder / "latest").is_file() or not (folder / LAYOUT_FILE).is_file():
        raise TrainingInputError(
            f"{folder} holds no state of a divided model to resume from (no {LAYOUT_FILE}); give a "
            "checkpoint of a run with tensor or pipeline parallelism and without --save_only_model, or start "
            "from its weights with --model_name_or_path"
        )
    saved = ParallelConfig(**json.loads((folder / LAYOUT_FILE).read_text(encoding="utf-8")))
    if saved != layout and 1 in (saved.pp, layout.pp):
        raise TrainingInputError(
            f"{folder} was saved at {_told(saved)}, but this run has {_told(layout)}; resume at the same "
            "degrees (from pipeline to pipeline they may change), or start from its weights with "
            "--model_name_or_path"
        )
    path, _ = engine.load_checkpoint(str(folder))
    if path is None:
        raise TrainingInputError(f"DeepSpeed found nothing to load in {folder}; give another checkpoint")
    file = folder / SCHEDULER_NAME
    if scheduler is not None:
        if not file.is_file():
            raise TrainingInputError(
                f"{folder} has no {SCHEDULER_NAME}: its run had its learning rate from the DeepSpeed "
                'configuration\'s "scheduler"; resume with the same configuration'
            )
        scheduler.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))


def _told(layout: ParallelConfig) -> str:
    return f"tp {layout.tp} × pp {layout.pp} × dp {layout.dp}"
