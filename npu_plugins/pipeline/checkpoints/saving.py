"""Saving a checkpoint: all files of all ranks, and only then its name and ``latest``.

DeepSpeed 0.19.8 writes into the final directory and lets rank 0 write ``latest`` when its own files are done,
whatever the others do. Here everything goes to ``.TAG.saving``; when all ranks have written and synchronised
their files, that becomes ``TAG`` in one step, and then ``latest`` names it. A directory TAG of before makes
room as ``.TAG.old`` and is deleted last; a load takes it if a crash came between.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.pipeline.checkpoints.description import KEY
from npu_plugins.pipeline.checkpoints.storage import sync_directory, write_text
from npu_plugins.pipeline.checkpoints.together import together


def staging_of(directory: Path) -> Path:
    """Return where a checkpoint is written before it has its name."""
    return directory.with_name(f".{directory.name}.saving")


def old_of(directory: Path) -> Path:
    """Return where the checkpoint that is replaced is meanwhile."""
    return directory.with_name(f".{directory.name}.old")


def save(
    engine: Any, save_dir: Path, tag: str, client_state: dict[str, Any], latest: bool, frozen: bool
) -> None:
    """Save an engine's state; every rank calls this.

    Args:
        engine: a `PipelineEngine`.
        save_dir: holds checkpoints.
        tag: the new one's name.
        client_state: of the caller's, plain values and tensors.
        latest: whether ``latest`` names it afterwards.
        frozen: whether parameters that are not trained are saved.

    Raises:
        CheckpointError: on every rank, if one failed; what was saved before is as it was.
    """
    directory = save_dir / tag
    staging, control = staging_of(directory), engine.control
    together(control, lambda: _check(engine, tag, client_state))
    _same_tag(engine, tag)
    together(control, lambda: _make_room(staging) if engine.global_rank == 0 else None)
    below = staging.relative_to(save_dir).as_posix()
    try:
        together(control, lambda: _write(engine, save_dir, below, client_state, frozen))
        together(control, lambda: _publish(staging, directory) if engine.global_rank == 0 else None)
    except CheckpointError:
        if engine.global_rank == 0:  # nobody writes any more; half a checkpoint only fills the disk
            shutil.rmtree(staging, ignore_errors=True)
        control.worst(0)
        raise
    if latest:
        together(control, lambda: write_text(save_dir / "latest", tag) if engine.global_rank == 0 else None)


def _check(engine: Any, tag: str, client_state: dict[str, Any]) -> None:
    path = Path(tag)
    if not tag or path.is_absolute() or ".." in path.parts or path.name.startswith("."):
        raise CheckpointError(
            f"the tag {tag!r} is no name of a directory below save_dir; give one like 'step-10'"
        )
    if KEY in client_state:
        raise CheckpointError(f"client_state has the key {KEY!r}, which the engine writes itself; rename it")
    if engine.zero_nvme_offload_optimizer() or engine.has_moe_layers:
        raise CheckpointError(
            "an optimizer on NVMe and layers with experts have files of their own, which a pipeline does not "
            "save; offload to the CPU, or train without a pipeline"
        )


def _same_tag(engine: Any, tag: str) -> None:
    tags = sorted(set(engine.control.texts(tag)))
    if len(tags) > 1:
        raise CheckpointError(
            f"the ranks save under different tags, {', '.join(tags)}; give one tag everywhere"
        )


def _make_room(staging: Path) -> None:
    for left in staging.parent.glob(".*.saving"):  # by a process that died
        shutil.rmtree(left)
    staging.mkdir(parents=True)


def _write(engine: Any, save_dir: Path, below: str, client_state: dict[str, Any], frozen: bool) -> None:
    if not (save_dir / below).is_dir():
        raise CheckpointError(
            f"{save_dir} is not the directory that rank 0 sees under this name; save to a file system that "
            "all nodes share"
        )
    engine._save_checkpoint(
        str(save_dir), below, client_state=client_state, exclude_frozen_parameters=not frozen
    )
    if engine.save_zero_checkpoint:
        engine._save_zero_checkpoint(str(save_dir), below)


def _publish(staging: Path, directory: Path) -> None:
    sync_directory(staging)
    old = old_of(directory)
    if directory.exists():
        if old.exists():
            shutil.rmtree(old)
        directory.rename(old)
    staging.rename(directory)
    sync_directory(directory.parent)
    if old.exists():
        shutil.rmtree(old)
