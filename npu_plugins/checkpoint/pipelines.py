"""Checkpoints of this package's pipeline engine, asked for whole tensors.

Every stage's description names its parameters, in the pipeline and, where it is one of a Hugging Face model,
in that model (`npu_plugins.pipeline.checkpoints.description`), and says how tensor parallelism divided them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint.constants import DS_VERSION

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.sources import FileLayout, OptimizerState, groups_for_any
from npu_plugins.checkpoint.streaming import TensorInfo
from npu_plugins.checkpoint.universal import counters_of
from npu_plugins.checkpoint.zero import common_state
from npu_plugins.pipeline.checkpoints.entries import MASTER, loss_scale
from npu_plugins.pipeline.checkpoints.source import Files
from npu_plugins.pipeline.checkpoints.states import StatesByName


class PipelineSource:
    """A checkpoint of the pipeline engine, with master weights where there are any.

    Tensors have the names of the Hugging Face model, or, for a pipeline of other layers, the pipeline's own.
    """

    layout: FileLayout | None = None

    def __init__(self, directory: Path) -> None:
        """Read the descriptions, and map the other files.

        Raises:
            CheckpointError: a file is missing or damaged, or DeepSpeed's own engine wrote it.
        """
        self.directory = directory
        self.files = Files(directory)
        if "modules" not in (self.files.description(0) or {}):
            raise CheckpointError(
                f"{directory} has a file for each layer of a pipeline, but nothing says which parameter of "
                "the whole model is which: DeepSpeed's own engine wrote it, or an earlier version of this "
                "package; load it into the pipeline engine of npu_plugins and save it again"
            )
        if self.files.misplaced:
            raise CheckpointError(
                f"{directory} was saved with round_robin_gradients, with which DeepSpeed notes wrong places "
                "of parameters; save the model from the job that wrote it"
            )
        self._descriptions = [self.files.description(place) or {} for place in self._places]
        self.of_hugging_face = any(each["hf_names"] for each in self._descriptions)
        self._states = self._optimizer_states()
        self._stored = self._stored_weights()
        self._local = {name: local for local in self._stored if (name := self._name(local)) is not None}
        self.tensors = {name: self._info(local) for name, local in self._local.items()}
        missing = {name for each in self._descriptions for name in each["hf_names"].values()} - {
            *self.tensors
        }
        if missing:
            raise CheckpointError(
                f"{directory} lacks {min(missing)} and {len(missing) - 1} more parameters; it was saved with "
                "exclude_frozen_parameters, or not copied whole"
            )

    @property
    def _places(self) -> range:
        """The first tensor-parallel rank of every pipeline rank."""
        return range(0, self.files.pp * self.files.tp, self.files.tp)

    def _optimizer_states(self) -> StatesByName | None:
        names = [self.files.names(place) or [] for place in self._places]
        if not any(names):
            return None
        states, copies = StatesByName(self.files, names), set[str]()
        for each in self._descriptions:
            copies.update(each["copies"])
        for name in states.names:
            if len(states.holders(name)) > 1 and name not in copies:
                raise CheckpointError(
                    f"{self.directory}: {name} belongs to a tied module but is not tied itself, so that "
                    "stages have different values of it; it can only be loaded at the layout that saved it"
                )
        return states

    def _stored_weights(self) -> dict[str, list[torch.Tensor]]:
        """What the layer files hold, by name in the pipeline: the part of every tensor-parallel rank."""
        found: dict[str, list[torch.Tensor]] = {}
        for description in self._descriptions:
            for prefix, layers in description["modules"].items():
                present = [index for index in layers if self.files.layer_files(index)]
                parts = self.files.layer((present or layers)[0])
                for key, value in parts[0].items():
                    if isinstance(value, torch.Tensor):
                        found.setdefault(prefix + key, [part[key] for part in parts])
        return found

    def _name(self, local: str) -> str | None:
        """The name outside; None for the second name of a tied weight."""
        if not self.of_hugging_face:
            return local
        return next(
            (each["hf_names"][local] for each in self._descriptions if local in each["hf_names"]), None
        )

    def _info(self, local: str) -> TensorInfo:
        parts = self._stored[local]
        shape = self.files.division(local).full_shape(parts[0].shape)
        entries = self._entries(local)
        has_master = bool(entries) and MASTER in entries[0].tensors()
        held = entries[0].fragments[0][MASTER] if has_master else parts[0]
        return TensorInfo(held.dtype, tuple(shape))

    def _entries(self, local: str) -> list[Any]:
        states = self._states
        return states.entries(local) if states is not None and states.holders(local) else []

    def _joined(self, local: str, parts: list[torch.Tensor]) -> torch.Tensor:
        shape = self._stored[local][0].shape
        return self.files.division(local).join([part.reshape(shape) for part in parts]).contiguous()

    def read(self, name: str) -> torch.Tensor:
        """Return a weight: the master's, where there is one."""
        local = self._local[name]
        entries = self._entries(local)
        if entries and MASTER in entries[0].tensors():
            return self._joined(local, [entry.flat(MASTER) for entry in entries])
        return self._joined(local, self._stored[local])

    def moments_of(self, name: str) -> list[str]:
        """Return the names of the optimizer's tensors for a parameter; [] if it has none."""
        entries = self._entries(self._local[name])
        return [key for key in entries[0].tensors() if key != MASTER] if entries else []

    def moments(self, name: str) -> Mapping[str, torch.Tensor]:
        """Return the optimizer's tensors for a parameter."""
        local = self._local[name]
        entries = self._entries(local)
        return {
            key: self._joined(local, [entry.flat(key) for entry in entries]) for key in self.moments_of(name)
        }

    @cached_property
    def optimizer(self) -> OptimizerState | None:
        """Of the optimizer; None where none was saved."""
        if self._states is None or not self._states.names:
            return None
        first = self._states.entries(self._states.names[0])[0]
        settings = [each for told in self._descriptions for each in told["hyperparameters"]]
        groups, notes = groups_for_any(settings)
        saved = self.files.optimizer(0)
        common = common_state(saved) if self.files.partitioned else {}
        if not self.files.partitioned and loss_scale(saved) is not None:
            notes += ("the dynamic loss scale begins anew",)
        return OptimizerState(first.scalars.get("step", 0), groups, common, notes)

    @property
    def counters(self) -> Mapping[str, Any]:
        """DeepSpeed's counts and the scheduler's state."""
        return counters_of(self.files.common())

    @property
    def version(self) -> str | None:
        """DeepSpeed's version that wrote it."""
        return self.files.common().get(DS_VERSION)
