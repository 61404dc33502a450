"""Checkpoints to convert from: each gives its weights by name, one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from npu_plugins.checkpoint.files import CheckpointFiles
from npu_plugins.checkpoint.streaming import TensorInfo


class FileLayout(NamedTuple):
    """How a Hugging Face directory divides its tensors into files, to write the same again."""

    weight_map: Mapping[str, str]
    """The file of each tensor."""
    metadata: Mapping[str, Mapping[str, str] | None]
    """What each file says of itself."""
    index_metadata: Mapping[str, Any] | None
    """The index's own metadata; None for a single file, which has no index."""


class OptimizerState(NamedTuple):
    """What of an optimizer's state is not a tensor of one parameter."""

    step: torch.Tensor | int
    groups: list[dict[str, Any]]
    """Settings of each parameter group, by DeepSpeed's names."""
    common: dict[str, Any]
    """What else DeepSpeed keeps: loss scale, clipping."""
    notes: tuple[str, ...] = ()
    """What of it cannot be kept in a universal checkpoint, in sentences."""


_MANY_GROUPS = 1024
"""More than an optimizer has."""


def groups_for_any(settings: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return parameter groups for an optimizer whose groups are not known, and notes about them.

    DeepSpeed pairs the file's parameter groups with the optimizer's by place and takes the settings it finds
    (0.19.8, `load_hp_checkpoint_state_from_checkpoint_dir`), so all get those that are the same everywhere;
    what is left out stays the optimizer's own.

    Args:
        settings: of all groups that were trained, in any order.
    """
    settings = [{key: each[key] for key in each if key not in ("params", "param_names")} for each in settings]
    plain = [{key: _comparable(value) for key, value in each.items()} for each in settings]
    keys = {key for each in plain for key in each}
    differing = sorted(
        key for key in keys if any(each.get(key, ...) != plain[0].get(key, ...) for each in plain)
    )
    same = {key: value for key, value in settings[0].items() if key not in differing} if settings else {}
    notes: tuple[str, ...] = ()
    if differing:
        notes = (
            f"parameter groups differ in {', '.join(differing)}, which the job that loads the checkpoint "
            "keeps as its own configuration says",
        )
    return [{**same, "params": []} for _ in range(_MANY_GROUPS)], notes


def _comparable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return tuple(value) if isinstance(value, list) else value


class Source(Protocol):
    """A checkpoint with whole tensors under the names of the model."""

    @property
    def directory(self) -> Path:
        """Where it is."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All weights, tied ones once, and persistent buffers."""

    @property
    def layout(self) -> FileLayout | None:
        """The files of the Hugging Face directory it was made from, if that is known."""

    @property
    def optimizer(self) -> OptimizerState | None:
        """Of the optimizer, if its state is there."""

    @property
    def counters(self) -> Mapping[str, Any]:
        """DeepSpeed's counts of steps and samples and the learning-rate scheduler's state, if any."""

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor on the CPU."""

    def moments(self, name: str) -> Mapping[str, torch.Tensor]:
        """Return the optimizer's tensors for a parameter, whole, such as ``exp_avg``; {} if it has none."""


class HuggingFaceSource:
    """A directory of `save_pretrained`."""

    optimizer: OptimizerState | None = None
    counters: Mapping[str, Any] = {}

    def __init__(self, directory: Path) -> None:
        """Read the headers.

        Raises:
            CheckpointError: as `CheckpointFiles.open`.
        """
        self.directory = directory
        self._files = CheckpointFiles.open(directory)
        self.tensors = {
            name: TensorInfo(stored.dtype, stored.shape) for name, stored in self._files.tensors.items()
        }
        index = self._files.index
        self.layout = FileLayout(
            {name: stored.file.name for name, stored in self._files.tensors.items()},
            self._files.metadata,
            None if index is None else index.get("metadata", {}),
        )

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor on the CPU, of which only a few MiB of the file are held besides."""
        target = torch.empty(self.tensors[name].shape, dtype=self.tensors[name].dtype)
        self._files.read(name, target)
        return target

    def moments(self, name: str) -> Mapping[str, torch.Tensor]:
        """Return {}: there is no optimizer."""
        return {}
