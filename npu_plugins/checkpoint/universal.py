"""DeepSpeed's universal checkpoints: a folder for each parameter, with its whole weight and optimizer state.

``zero/<parameter>/fp32.pt`` holds the master weight, ``exp_avg.pt`` and ``exp_avg_sq.pt`` Adam's moments,
``step.pt`` their step; ``zero/optimizer_state.pt`` what is common to all, and ``mp_rank_00_model_states.pt``
the engine's counters (DeepSpeed 0.19.8, `checkpoint/ds_to_universal.py`, `universal_checkpoint.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint.constants import (
    DS_VERSION,
    OPTIMIZER_STATE_DICT,
    PARAM,
    PARAM_GROUPS,
    PARAM_SHAPES,
    UNIVERSAL_CHECKPOINT_INFO,
    UNIVERSAL_CHECKPOINT_VERSION_KEY,
    UNIVERSAL_CHECKPOINT_VERSION_VALUE,
)

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import check_inside
from npu_plugins.checkpoint.kinds import UNIVERSAL_COMMON as COMMON
from npu_plugins.checkpoint.kinds import UNIVERSAL_WEIGHT as WEIGHT
from npu_plugins.checkpoint.sources import FileLayout, OptimizerState, Source, groups_for_any
from npu_plugins.checkpoint.streaming import TensorInfo
from npu_plugins.checkpoint.torch_files import read_torch

MOMENTS = ("exp_avg", "exp_avg_sq")
# A universal checkpoint is read with the model states of DeepSpeed's stages 0 to 2, or with those of stage 3.
MODEL_STATES = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")


class UniversalSource:
    """A universal checkpoint, as `ds_to_universal.py` or `write_universal` left it."""

    layout: FileLayout | None = None

    def __init__(self, directory: Path) -> None:
        """Look at every weight's shape; none is read.

        Raises:
            CheckpointError: a file is missing, damaged or not of this form.
        """
        self.directory = directory
        folders = sorted(path.parent for path in (directory / "zero").rglob(WEIGHT))
        if not folders:
            raise CheckpointError(
                f"{directory / 'zero'} holds no weights ({WEIGHT}); copy the whole checkpoint"
            )
        self._states = _first_states(directory)
        groups = self._states.get(PARAM_SHAPES) or []
        self._shapes = {name: tuple(shape) for group in groups for name, shape in group.items()}
        self._folders = {path.relative_to(directory / "zero").as_posix(): path for path in folders}
        self.tensors = {}
        for name in self._folders:
            weight = self.read(name)
            self.tensors[name] = TensorInfo(weight.dtype, tuple(weight.shape))

    @property
    def optimizer(self) -> OptimizerState | None:
        """Of the optimizer, if its state is there."""
        steps = [folder / "step.pt" for folder in self._folders.values() if (folder / "step.pt").is_file()]
        file = self.directory / "zero" / COMMON
        if not file.is_file():
            return None
        common = dict(read_torch(file))
        groups = common.pop(PARAM_GROUPS, [])
        inner = common.pop(OPTIMIZER_STATE_DICT, {})
        stage3 = inner.get("state", {}).get(0, {}) if isinstance(inner, Mapping) else {}
        step = read_torch(steps[0]) if steps else stage3.get("step", 0)
        return OptimizerState(step, groups, common)

    @property
    def counters(self) -> Mapping[str, Any]:
        """DeepSpeed's counts, from the model states beside the weights."""
        return counters_of(self._states)

    def read(self, name: str) -> torch.Tensor:
        """Return a master weight."""
        return self._shaped(name, _tensor(self._folders[name] / WEIGHT))

    def moments(self, name: str) -> Mapping[str, torch.Tensor]:
        """Return the optimizer's tensors for a parameter."""
        files = sorted(self._folders[name].glob("*.pt"))
        tensors = {file.stem: _tensor(file) for file in files if file.name not in (WEIGHT, "step.pt")}
        return {key: self._shaped(name, value) for key, value in tensors.items()}

    def _shaped(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor in its parameter's shape, which `ds_to_universal.py` drops at stage 3."""
        shape = self._shapes.get(name)
        if shape is None or value.dim() != 1 or value.numel() != torch.Size(shape).numel():
            return value
        return value.view(shape)


def counters_of(states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts and the scheduler's state that DeepSpeed's model states hold."""
    names = ("global_steps", "global_samples", "skipped_steps", "lr_scheduler", "ds_config")
    return {name: states[name] for name in names if name in states}


def write_universal(source: Source, directory: Path) -> list[str]:
    """Write all of a source as a universal checkpoint, which DeepSpeed loads at any layout.

    Weights become fp32, which loses nothing of bf16 and fp16. Without an optimizer's state in the source the
    moments are zero and the step is 0, as an Adam that has not begun has them.

    Args:
        source: any.
        directory: exists; it becomes the folder of the tag.

    Returns:
        What the reader should know, sentence by sentence.

    Raises:
        CheckpointError: a tensor cannot be a parameter.
    """
    notes: list[str] = []
    optimizer = source.optimizer
    for name, info in source.tensors.items():
        if not info.dtype.is_floating_point or info.dtype.itemsize > 4:
            raise CheckpointError(
                f"{name} in {source.directory} is {info.dtype}, but universal checkpoints hold fp32 weights: "
                "it would not be the same again; convert to hf or sharded instead"
            )
        check_inside(name, source.directory)
        folder = directory / "zero" / name
        folder.mkdir(parents=True)
        weight = source.read(name).float()
        _save({PARAM: weight}, folder / WEIGHT)
        moments: Mapping[str, torch.Tensor] = source.moments(name)
        if optimizer is None:
            zero = torch.zeros_like(weight)
            moments = dict.fromkeys(MOMENTS, zero)
        for key, value in moments.items():
            if value.shape != weight.shape:
                raise CheckpointError(
                    f"{key} of {name} in {source.directory} has shape {list(value.shape)}, but a universal "
                    f"checkpoint has a number for each element of {list(weight.shape)}; convert the weights "
                    "alone, to hf"
                )
            _save({PARAM: value}, folder / f"{key}.pt")
        if moments:
            _save(torch.tensor(0.0) if optimizer is None else optimizer.step, folder / "step.pt")
    if optimizer is None:
        notes.append("the source has no optimizer's state: the moments are zero and the step is 0")
    else:
        notes += optimizer.notes
    _write_common(optimizer, directory)
    _write_states(source, directory)
    return notes


def _write_common(optimizer: OptimizerState | None, directory: Path) -> None:
    if optimizer is None:
        optimizer = OptimizerState(torch.tensor(0.0), groups_for_any([])[0], {})
    step, groups, common, _ = optimizer
    content = {
        **common,
        DS_VERSION: common.get(DS_VERSION, metadata.version("deepspeed")),
        PARAM_GROUPS: groups,
        # Stage 3 looks for step and groups here.
        OPTIMIZER_STATE_DICT: {"state": {0: {"step": step}}, PARAM_GROUPS: groups},
    }
    _save(content, directory / "zero" / COMMON)


def _write_states(source: Source, directory: Path) -> None:
    states = {
        "module": {},
        "buffer_names": [],
        "param_shapes": [{name: torch.Size(info.shape) for name, info in source.tensors.items()}],
        "shared_params": {},
        "optimizer": None,
        "lr_scheduler": None,
        "global_steps": 0,
        "skipped_steps": 0,
        "dp_world_size": 1,
        "mp_world_size": 1,
        "ds_config": {},
        **source.counters,
        DS_VERSION: metadata.version("deepspeed"),
        UNIVERSAL_CHECKPOINT_INFO: {UNIVERSAL_CHECKPOINT_VERSION_KEY: UNIVERSAL_CHECKPOINT_VERSION_VALUE},
    }
    for name in MODEL_STATES:
        _save(states, directory / name)


def _save(content: Any, file: Path) -> None:
    if isinstance(content, dict):
        content = {key: _alone(value) for key, value in content.items()}
    try:
        torch.save(content, file)
    except RuntimeError as error:  # so torch says that a disk is full
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{file} cannot be written: {reason}; make room or mend that") from error


def _alone(value: Any) -> Any:
    """A view as a tensor of its own: torch.save writes all of the storage that a view is a part of."""
    if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() != value.nbytes:
        return value.clone()
    return value


def _tensor(file: Path) -> torch.Tensor:
    held = read_torch(file)
    value = held.get(PARAM) if isinstance(held, Mapping) else held
    if not isinstance(value, torch.Tensor):
        raise CheckpointError(f"{file} holds no tensor under {PARAM!r}; copy or convert the checkpoint again")
    return value.detach()


def _first_states(directory: Path) -> Mapping[str, Any]:
    for name in MODEL_STATES:
        if (directory / name).is_file():
            return read_torch(directory / name)
    return {}
