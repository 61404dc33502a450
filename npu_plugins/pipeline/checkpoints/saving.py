"""Saving a checkpoint: all files of all ranks, and only then its name and ``latest``.

DeepSpeed 0.19.8 writes into the final directory and lets rank 0 write ``latest`` when its own files are done,
whatever the others do. Here everything is written aside and renamed (`npu_plugins.checkpoint.aside`), with a
manifest of sizes and checksums, and then ``latest`` names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npu_plugins.checkpoint.aside import Saving, write_text
from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.manifest import Layout, Manifest
from npu_plugins.pipeline.checkpoints.description import KEY, write_config
from npu_plugins.pipeline.checkpoints.storage import ControlRanks


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
    ranks = ControlRanks(engine.control)
    ranks.together(lambda: _check(engine, tag, client_state))
    tags = sorted(set(ranks.tell(tag)))
    if len(tags) > 1:
        raise CheckpointError(
            f"the ranks save under different tags, {', '.join(tags)}; give one tag everywhere"
        )
    job = Saving(save_dir / tag, ranks)
    layout = Layout(engine.mesh.config, engine.zero_optimization_stage())
    job.run(
        lambda staging: _write(engine, save_dir, staging, client_state, frozen),
        lambda records: Manifest(engine.global_steps, layout, engine._model_identity, records),
    )
    if latest:
        ranks.together(lambda: write_text(save_dir / "latest", tag) if ranks.rank == 0 else None)
    job.clear()


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


def _write(engine: Any, save_dir: Path, staging: Path, client_state: dict[str, Any], frozen: bool) -> None:
    below = staging.relative_to(save_dir).as_posix()
    engine._save_checkpoint(
        str(save_dir), below, client_state=client_state, exclude_frozen_parameters=not frozen
    )
    if engine.save_zero_checkpoint:
        engine._save_zero_checkpoint(str(save_dir), below)
    if engine.global_rank == 0:
        write_config(engine.module, staging)
