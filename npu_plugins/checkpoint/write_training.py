"""Writing what the Trainer goes on from, a Hugging Face directory with a portable state of training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import DTYPES
from npu_plugins.checkpoint.hugging_face import write_hugging_face
from npu_plugins.checkpoint.load import read_config
from npu_plugins.checkpoint.manifest import MANIFEST_FILE, Layout, Manifest, model_digest, record
from npu_plugins.checkpoint.sources import OptimizerState, Source, groups_for_any
from npu_plugins.checkpoint.state.counters import COUNTERS
from npu_plugins.checkpoint.state.index import STATE_FOLDER, Fragment, ParameterState, StateIndex
from npu_plugins.checkpoint.state.saving import NOT_SAVED
from npu_plugins.checkpoint.state.scale import scale_of_deepspeed
from npu_plugins.checkpoint.state.values import plain
from npu_plugins.checkpoint.streaming import SafetensorsWriter, TensorInfo
from npu_plugins.checkpoint.torch_files import read_torch
from npu_plugins.pipeline.checkpoints.division import Division

TRAINER_STATE, SCHEDULER = "trainer_state.json", "scheduler.pt"
_CODES = {dtype: code for code, dtype in DTYPES.items()}


def write_training(source: Source, folder: Path, origin: Path, max_file_bytes: int) -> list[str]:
    """Write what `load_training_state` reads, and the Trainer where its own state is in `origin`.

    Weights are in the model's safetensors, in the dtype of the source's master weights.

    Args:
        source: with an optimizer's state.
        folder: exists; config.json and other small files are there.
        origin: directory with config.json, whose ``trainer_state.json`` and scheduler come along.
        max_file_bytes: where a file ends.

    Returns:
        What the reader should know, sentence by sentence.

    Raises:
        CheckpointError: the source has no state by name, or the Trainer's state is of another step.
    """
    optimizer = source.optimizer
    moments = _moments(source)
    if optimizer is None or not moments or not _settings(optimizer):
        raise CheckpointError(
            f"{source.directory} holds no optimizer's state by name, so there is no training to go on with; "
            "start from its weights with --model_name_or_path"
        )
    write_hugging_face(source, folder, source.tensors, same_files=False, max_file_bytes=max_file_bytes)
    index = _index(source, optimizer, moments, max_file_bytes)
    index.scheduler = _scheduler(source, origin)
    (folder / STATE_FOLDER).mkdir()
    for file, held in index.files().items():
        infos = {name: TensorInfo(DTYPES[code], shape) for name, (code, shape) in held.items()}
        with SafetensorsWriter(folder / STATE_FOLDER / file, infos, {"format": "pt"}) as writer:
            for parameter in (
                name for name, each in index.parameters.items() if each.fragments[0].file == file
            ):
                for key, value in source.moments(parameter).items():
                    writer.write(f"{parameter}/{key}", value.reshape(-1))
    index.write(folder / STATE_FOLDER)
    step = int(index.counters.get("global_steps", 0))
    _, differing = groups_for_any(optimizer.groups)
    notes = [*optimizer.notes, *differing, *_trainer_state(origin, folder, step)]
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_FILE]
    records = {path.relative_to(folder).as_posix(): record(path, sync=True) for path in files}
    Manifest(step, Layout(), model_digest(read_config(folder)), records).write(folder)
    return notes


def _moments(source: Source) -> dict[str, dict[str, TensorInfo]]:
    """What the optimizer has of each trained parameter; one is looked at at a time."""
    found = {}
    for name in source.tensors:
        held = {key: TensorInfo(each.dtype, tuple(each.shape)) for key, each in source.moments(name).items()}
        if held:
            found[name] = held
    return found


def _index(
    source: Source,
    optimizer: OptimizerState,
    moments: Mapping[str, Mapping[str, TensorInfo]],
    max_file_bytes: int,
) -> StateIndex:
    parameters, number, room = {}, 0, max_file_bytes
    for name, held in moments.items():
        info, size = source.tensors[name], sum(each.nbytes for each in held.values())
        if size > room and room < max_file_bytes:
            number, room = number + 1, max_file_bytes
        room -= size
        parameters[name] = ParameterState(
            info.shape,
            Division(),
            0,
            {"step": float(optimizer.step)},
            {key: _CODES[each.dtype] for key, each in held.items()},
            {},
            [Fragment(0, 0, info.numel, f"rank-{number:05d}.safetensors")],
        )
    counters = source.counters
    return StateIndex(
        Layout(),
        f"optimizer with {' and '.join(sorted({key for held in moments.values() for key in held}))}",
        [plain(_settings(optimizer), "a parameter group")],
        parameters,
        {key: int(counters[key]) for key in COUNTERS if key in counters},
        loss_scale=_loss_scale(optimizer),
    )


def _settings(optimizer: OptimizerState) -> dict[str, Any]:
    """The hyperparameters that all groups have; {} of a universal checkpoint that was made of weights."""
    groups, _ = groups_for_any(optimizer.groups)
    return {key: value for key, value in groups[0].items() if key not in (*NOT_SAVED, "step")}


def _loss_scale(optimizer: OptimizerState) -> dict[str, Any] | None:
    """The dynamic loss scale that DeepSpeed's ZeRO keeps, in the state's words."""
    scaler = optimizer.common.get("loss_scaler")
    if scaler is None or not getattr(scaler, "dynamic", False):
        return None
    return scale_of_deepspeed(scaler)


def _scheduler(source: Source, origin: Path) -> dict[str, Any] | None:
    """The state of the learning rate's scheduler: DeepSpeed's, or what the Trainer keeps beside its own."""
    held = source.counters.get("lr_scheduler")
    if held is None and (origin / SCHEDULER).is_file():
        held = read_torch(origin / SCHEDULER)
    return None if held is None else plain(dict(held), "the learning-rate scheduler's state")


def _trainer_state(origin: Path, folder: Path, step: int) -> list[str]:
    file = origin / TRAINER_STATE
    if not file.is_file():
        return [f"{origin} has no {TRAINER_STATE}: load_training_state takes the result, but not the Trainer"]
    try:
        found = int(json.loads(file.read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({type(error).__name__}: {error}); copy it again"
        ) from error
    if found != step:
        raise CheckpointError(
            f"{file} is of step {found}, but the optimizer's state of step {step}; give the directory of the "
            "same checkpoint with --config"
        )
    shutil.copyfile(file, folder / TRAINER_STATE)
    return []
