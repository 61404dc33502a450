"""The Trainer's checkpoints of a divided model: DeepSpeed's engine saves and loads weights and optimizer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers.trainer import SCHEDULER_NAME

from ds_configs.parallel import ParallelConfig
from hf_integration.errors import TrainingInputError

LAYOUT_FILE = "parallel_layout.json"


def save_state(engine: Any, folder: Path, layout: ParallelConfig, scheduler: Any, writes: bool) -> None:
    """Save the engine's state beside the model; every rank calls this.

    Args:
        engine: DeepSpeed's.
        folder: of the checkpoint.
        layout: the degrees, which are written down.
        scheduler: the learning rate's, where the Trainer steps it; None where the engine does.
        writes: whether this rank writes what all ranks share.
    """
    engine.save_checkpoint(str(folder))
    if writes:
        (folder / LAYOUT_FILE).write_text(json.dumps(asdict(layout), indent=2) + "\n", encoding="utf-8")
        if scheduler is not None:
            torch.save(scheduler.state_dict(), folder / SCHEDULER_NAME)
    dist.barrier()


def load_state(engine: Any, folder: Path, layout: ParallelConfig, scheduler: Any) -> None:
    """Load what `save_state` has saved; every rank calls this.

    Raises:
        TrainingInputError: the checkpoint is none of a divided model, or one of another layout where the
            engine cannot rearrange it.
    """
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
