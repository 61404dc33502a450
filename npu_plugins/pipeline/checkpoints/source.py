"""A checkpoint directory of DeepSpeed's, of any layout, asked for what one rank of another layout needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint.constants import (
    CHECKPOINT_PARALLEL_DIMS,
    CHECKPOINT_PP_DEGREE,
    CHECKPOINT_TP_DEGREE,
    OPTIMIZER_STATE_DICT,
)

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.torch_files import read_torch
from npu_plugins.pipeline.checkpoints import entries
from npu_plugins.pipeline.checkpoints.description import KEY
from npu_plugins.pipeline.checkpoints.division import Division
from npu_plugins.pipeline.checkpoints.entries import Entry

_OPTIMIZER_FILE = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")


class Files:
    """The files of one checkpoint, each read when it is first needed.

    "Place" is a position on the ``model`` axis, pipeline rank × tp + tensor-parallel rank, by which DeepSpeed
    numbers its mp_rank files.
    """

    def __init__(self, directory: Path) -> None:
        """Find the files.

        Raises:
            CheckpointError: there is no such checkpoint, or it lacks a file.
        """
        self.directory = directory
        self._read: dict[Path, Any] = {}
        if not directory.is_dir():
            others = sorted(path.name for path in directory.parent.glob("*") if path.is_dir())
            there = f"there are {', '.join(others)}" if others else "there is none"
            raise CheckpointError(f"{directory} is no checkpoint; of {directory.parent} {there}")
        first = self.read(directory / "mp_rank_00_model_states.pt")
        dimensions = first.get(CHECKPOINT_PARALLEL_DIMS) or {}
        self.tp = dimensions.get(CHECKPOINT_TP_DEGREE, 1)
        self.pp = dimensions.get(CHECKPOINT_PP_DEGREE, first["mp_world_size"] // self.tp)
        self.dp = first["dp_world_size"]
        for place in range(self.pp * self.tp):
            if not self._mp_file(place).is_file():
                read_torch(self._mp_file(place))  # which says that it is missing

    def read(self, path: Path) -> Any:
        """Return what a file holds."""
        if path not in self._read:
            self._read[path] = read_torch(path)
        return self._read[path]

    def _mp_file(self, place: int) -> Path:
        return self.directory / f"mp_rank_{place:02d}_model_states.pt"

    def common(self, place: int = 0) -> Mapping[str, Any]:
        """Return the mp_rank file of a place: counters, the scheduler, the description."""
        return self.read(self._mp_file(place))

    def description(self, place: int) -> Mapping[str, Any] | None:
        """Return what this package wrote there; None for a file of another program's."""
        return self.common(place).get(KEY)

    # Layers

    def layer_files(self, index: int) -> list[Path]:
        """Return the files of a layer, one for each tensor-parallel rank; [] if there are none."""
        return sorted(self.directory.glob(f"layer_{index:02d}-*model_states.pt"))

    def layer(self, index: int) -> list[Mapping[str, torch.Tensor]]:
        """Return a layer's saved state of each tensor-parallel rank.

        Raises:
            CheckpointError: a file is missing or cut short.
        """
        files = self.layer_files(index)
        if len(files) != self.tp:
            names = [f"layer_{index:02d}-model_states.pt"]
            if self.tp > 1:
                names = [f"layer_{index:02d}-model_{rank:02d}-model_states.pt" for rank in range(self.tp)]
            here = {path.name for path in files}
            missing = next((name for name in names if name not in here), names[0])
            read_torch(self.directory / missing)
        return [self.read(path) for path in files]

    # Parameters

    def division(self, name: str) -> Division:
        """Return how a parameter is divided in the checkpoint; whole if nothing says so."""
        for place in range(0, self.pp * self.tp, self.tp):
            described = (self.description(place) or {}).get("parameters", {}).get(name)
            if described is not None:
                return Division.from_plain(described)
        return Division()

    @property
    def described(self) -> bool:
        """Whether this package wrote the checkpoint."""
        return self.description(0) is not None

    # Optimizer

    @cached_property
    def _optimizer_files(self) -> dict[tuple[int, int], Path]:
        """Files of partitioned optimizers, by place and replica."""
        found: dict[tuple[int, int], Path] = {}
        for path in self.directory.iterdir():
            match = _OPTIMIZER_FILE.fullmatch(path.name)
            if match is None:
                continue
            key = int(match.group(2)), int(match.group(1))
            if key in found:
                raise CheckpointError(
                    f"{path} and {found[key].name} are one rank's files of two saves; delete the older one"
                )
            found[key] = path
        return found

    @property
    def partitioned(self) -> bool:
        """Whether the optimizer's state is divided between replicas."""
        return bool(self._optimizer_files)

    @property
    def misplaced(self) -> bool:
        """Whether the optimizer's files tell wrong places of parameters; see `check_places`."""
        zero = self.common().get("ds_config", {}).get("zero_optimization", {})
        return self.partitioned and self.dp > 1 and bool(zero.get("round_robin_gradients"))

    def _replicas(self, place: int) -> list[Mapping[str, Any]]:
        """Return what each replica's optimizer saved."""
        states = []
        for replica in range(self.dp):
            path = self._optimizer_files.get((place, replica))
            if path is None:
                example = next(iter(self._optimizer_files.values())).name
                prefix = "bf16_" if example.startswith("bf16_") else ""
                name = f"{prefix}zero_pp_rank_{replica}_mp_rank_{place:02d}_optim_states.pt"
                path = self.directory / name
            states.append(self.read(path)[OPTIMIZER_STATE_DICT])
        return states

    def optimizer(self, place: int) -> Mapping[str, Any]:
        """Return what the optimizer of a place saved, that of its first replica.

        Raises:
            CheckpointError: no optimizer was saved.
        """
        if self.partitioned:
            return self._replicas(place)[0]
        state = self.common(place).get("optimizer")
        if state is None:
            raise CheckpointError(
                f"{self._mp_file(place)} holds no optimizer's state, and there are no *_optim_states.pt; "
                "load it with load_optimizer_states=False"
            )
        return state

    def names(self, place: int) -> list[str] | None:
        """Return the parameters of a place's optimizer; None if nothing names them."""
        description = self.description(place)
        if description is not None:
            names = [name for group in description["groups"] for name in group]
            return [name for name in names if not (self.partitioned and name in description["copies"])]
        if self.partitioned:
            return list(dict.fromkeys(entries.names_in(self._replicas(place))))
        return None

    def entries(
        self, place: int, names: Sequence[str], groups: Sequence[Sequence[str]], shapes: Mapping[str, Any]
    ) -> dict[str, Entry]:
        """Return the entries of `names` at a place.

        Args:
            place: where.
            names: that are there.
            groups: names of all parameters there in the optimizer's order, if the checkpoint does not say.
            shapes: and their shapes.
        """
        description = self.description(place)
        if self.partitioned:
            found = entries.partitioned(self._replicas(place), names)
            for name, settings in settings_by_name(description).items():
                if name in found:  # ZeRO's elastic_checkpoint saves no hyperparameters
                    found[name].settings = settings
            return found
        state = self.optimizer(place)
        if description is not None:
            groups = description["groups"]
            shapes = {name: each["shape"] for name, each in description["parameters"].items()}
        found = entries.whole(state, groups, shapes)
        return {name: found[name] for name in names}


def settings_by_name(description: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """Return the hyperparameters by parameter that a description tells."""
    if description is None:
        return {}
    groups = zip(description["groups"], description["hyperparameters"], strict=True)
    return {name: settings for names, settings in groups for name in names}
