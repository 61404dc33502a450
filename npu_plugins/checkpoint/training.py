"""The Trainer's checkpoints, Hugging Face directories with a portable state of training, as whole tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from npu_plugins.checkpoint.files import DTYPES
from npu_plugins.checkpoint.sources import FileLayout, OptimizerState, groups_for_any
from npu_plugins.checkpoint.state.index import MASTER, StateIndex
from npu_plugins.checkpoint.state.reading import StateReader
from npu_plugins.checkpoint.state.values import restored
from npu_plugins.checkpoint.streaming import TensorInfo


class TrainingSource:
    """A checkpoint with a portable state (`npu_plugins.checkpoint.state`)."""

    layout: FileLayout | None = None

    def __init__(self, directory: Path) -> None:
        """Read the index and the headers of the model's files.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        self.directory = directory
        self._reader = StateReader(directory)
        stored = {} if self._reader.model is None else self._reader.model.tensors
        self.tensors = {name: TensorInfo(each.dtype, each.shape) for name, each in stored.items()}
        for name, state in self.index.parameters.items():
            if MASTER in state.tensors:
                self.tensors[name] = TensorInfo(DTYPES[state.tensors[MASTER]], state.shape)
            self._reader.check(name)

    @property
    def index(self) -> StateIndex:
        """What the state says of itself."""
        return self._reader.index

    def read(self, name: str) -> torch.Tensor:
        """Return a weight: the master's, where there is one."""
        info = self.tensors[name]
        state = self.index.parameters.get(name)
        if state is not None and MASTER in state.tensors:
            return self._reader.whole(name, MASTER)
        target = torch.empty(info.shape, dtype=info.dtype)
        assert self._reader.model is not None, "what is no master weight is in the model's files"
        self._reader.model.read(name, target)
        return target

    def moments_of(self, name: str) -> list[str]:
        """Return the names of the optimizer's tensors for a parameter; [] if it has none."""
        state = self.index.parameters.get(name)
        return [] if state is None else [*self._reader.keys(name), *state.others]

    def moments(self, name: str) -> Mapping[str, torch.Tensor]:
        """Return the optimizer's tensors for a parameter."""
        return {key: self._reader.whole(name, key) for key in self.moments_of(name)}

    @cached_property
    def optimizer(self) -> OptimizerState | None:
        """Of the optimizer; None where it has no state yet."""
        states = self.index.parameters
        if not any(states[name].scalars or self.moments_of(name) for name in states):
            return None
        # Some optimizers, such as SGD with momentum, count no steps.
        step = next((each.scalars["step"] for each in states.values() if "step" in each.scalars), 0)
        groups, notes = groups_for_any([restored(each) for each in self.index.settings])
        if self.index.loss_scale is not None:
            notes += ("the dynamic loss scale begins anew",)
        return OptimizerState(torch.tensor(float(step)), groups, {}, notes)

    @property
    def counters(self) -> Mapping[str, Any]:
        """DeepSpeed's counts and the scheduler's state."""
        counts = {key: value for key, value in self.index.counters.items() if key != "calls"}
        return {**counts, "lr_scheduler": restored(self.index.scheduler)}
