"""The saved optimizer state of a parameter, found by its name, in a checkpoint or a universal folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint.constants import PARAM

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.torch_files import read_torch
from npu_plugins.pipeline.checkpoints import entries
from npu_plugins.pipeline.checkpoints.description import hf_names_of
from npu_plugins.pipeline.checkpoints.division import Division
from npu_plugins.pipeline.checkpoints.entries import MASTER, Entry
from npu_plugins.pipeline.checkpoints.places import named_groups
from npu_plugins.pipeline.checkpoints.source import Files, settings_by_name


class StatesByName:
    """The optimizer's part of a checkpoint."""

    def __init__(
        self,
        files: Files,
        names: Sequence[Sequence[str]],
        groups: Sequence[Sequence[str]] = (),
        shapes: Mapping[str, Any] | None = None,
        own: int = 0,
    ) -> None:
        """Note which place holds which parameter.

        Args:
            files: of the checkpoint.
            names: by pipeline rank, the parameters whose state it saved.
            groups: names by parameter group, if the checkpoint does not say.
            shapes: of the parameters, if it does not say.
            own: the pipeline rank whose copy of a tied weight is taken, where it has one.
        """
        self.files, self.tp = files, int(files.tp)
        self._groups, self._shapes, self._own = groups, shapes or {}, own
        self._holders: dict[str, list[int]] = {}
        for pipe, each in enumerate(names):
            for name in each:
                self._holders.setdefault(name, []).append(pipe)
        self._cached: dict[int, dict[str, Entry]] = {}

    @property
    def names(self) -> list[str]:
        """The parameters with state."""
        return list(self._holders)

    def division(self, name: str) -> Division:
        """Return how the parameter's entries are divided."""
        return self.files.division(name)

    def holders(self, name: str) -> list[int]:
        """Return the pipeline ranks that saved the parameter."""
        return self._holders.get(name, [])

    def entries(self, name: str) -> list[Entry]:
        """Return the entries of a parameter, one for each tensor-parallel rank that saved it.

        Raises:
            CheckpointError: there are none.
        """
        places = self.holders(name)
        if not places:
            raise CheckpointError(
                f"{self.files.directory} holds no optimizer state of {name}; it was saved by a model with "
                "other layers, or before that parameter was trained: pass load_optimizer_states=False"
            )
        pipe = self._own if self._own in places else places[0]
        return [self._at(pipe * self.tp + rank)[name] for rank in range(self.tp)]

    def _at(self, place: int) -> dict[str, Entry]:
        if place not in self._cached:
            pipe = place // self.tp
            names = [name for name, places in self._holders.items() if pipe in places]
            self._cached[place] = self.files.entries(place, names, self._groups, self._shapes)
        return self._cached[place]

    def loss_scale(self) -> dict[str, Any] | None:
        """Return the dynamic loss scale's state, equal on all ranks."""
        return entries.loss_scale(self.files.optimizer(self._own * self.tp))


class SavedStates(StatesByName):
    """The optimizer's part of a checkpoint, for one rank of an engine."""

    def __init__(self, files: Files, engine: Any) -> None:
        """Find out which place holds which parameter.

        Raises:
            CheckpointError: the checkpoint does not name its parameters and is of another layout.
        """
        if files.misplaced:
            raise CheckpointError(
                f"{files.directory} was saved with zero_optimization.round_robin_gradients and {files.dp} "
                "replicas, of which DeepSpeed 0.19.8 notes wrong places of parameters; load it with "
                "load_optimizer_states=False"
            )
        mesh, groups = engine.mesh, named_groups(engine)
        own = mesh.rank("pp") if files.pp == mesh.size("pp") else 0
        names = [files.names(pipe * files.tp) for pipe in range(files.pp)]
        if any(each is None for each in names):
            if (files.pp, files.tp) != (mesh.size("pp"), mesh.size("tp")):
                raise CheckpointError(
                    f"{files.directory} was saved by DeepSpeed's own engine without ZeRO, which keeps the "
                    f"optimizer's state by position, at pp {files.pp} × tp {files.tp}; load it at that "
                    "layout and save it again, or pass load_optimizer_states=False"
                )
            mine = [name for group in groups for name in group]
            names = [mine if pipe == own else [] for pipe in range(files.pp)]
        shapes = {name: list(each.shape) for name, each in engine.module.named_parameters()}
        super().__init__(files, [each or [] for each in names], groups, shapes, own)


class UniversalStates:
    """A universal folder, of ``ds_to_universal.py`` or of `npu-plugins checkpoint convert`: whole tensors."""

    tp: int | None = None
    """Everything is whole, as no tensor-parallel rank may have it (one has padding, perhaps)."""

    def __init__(self, files: Files, engine: Any) -> None:
        """Read what is common to all parameters.

        Raises:
            CheckpointError: it is no universal folder, or its hyperparameters cannot be told by parameter.
        """
        self.files, self._folder = files, files.directory / "zero"
        self._names: Mapping[str, str] = hf_names_of(engine.module)
        self._common: Mapping[str, Any] = read_torch(self._folder / "optimizer_state.pt")
        self._own_groups = named_groups(engine)

    def division(self, name: str) -> Division:
        """Return that of a whole one."""
        return Division()

    def holders(self, name: str) -> list[int]:
        """Return [0] for a parameter that is there."""
        return [0] if self._folder_of(name).is_dir() else []

    def _folder_of(self, name: str) -> Path:
        """The parameter's folder: by its name in the pipeline, or in the Hugging Face model."""
        own = self._folder / name
        return own if own.is_dir() else self._folder / self._names.get(name, name)

    @cached_property
    def _settings(self) -> dict[str, Mapping[str, Any]]:
        """The hyperparameters by parameter."""
        found: dict[str, Mapping[str, Any]] = {}
        if self.files.described:
            for place in range(0, self.files.pp * self.files.tp, self.files.tp):
                found.update(settings_by_name(self.files.description(place)))
            return found
        saved = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self._common["param_groups"]
        ]
        if all(each == saved[0] for each in saved):
            saved = saved[:1] * len(self._own_groups)
        if len(saved) != len(self._own_groups):
            raise CheckpointError(
                f"{self._folder} has {len(saved)} parameter groups and does not say what is in them, but "
                f"this optimizer has {len(self._own_groups)}; make as many groups, in the same order"
            )
        for names, group in zip(self._own_groups, saved, strict=True):
            found.update(dict.fromkeys(names, group))
        return found

    def entries(self, name: str) -> list[Entry]:
        """Return the one entry of a parameter.

        Raises:
            CheckpointError: there is none, or a file is missing or cut short.
        """
        folder = self._folder_of(name)
        if not folder.is_dir():
            raise CheckpointError(
                f"{self._folder} has no folder {name}; it was made from a model with other layers, or that "
                "parameter was not trained: add it to the optimizer that is saved"
            )
        tensors: dict[str, torch.Tensor] = {}
        scalars: dict[str, Any] = {}
        for path in sorted(folder.glob("*.pt")):
            value = read_torch(path)
            if isinstance(value, Mapping):
                tensors[path.stem] = self.files.division(name).unpadded(value[PARAM]).reshape(-1)
            else:
                scalars[path.stem] = value
        if MASTER not in tensors:
            read_torch(folder / f"{MASTER}.pt")
        return [Entry([tensors], scalars, self._settings.get(name, {}))]

    def loss_scale(self) -> dict[str, Any] | None:
        """Return the dynamic loss scale's state."""
        return entries.loss_scale(self._common)
