"""Loading the layer files of a checkpoint at any layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.pipeline.checkpoints.division import Division
from npu_plugins.pipeline.checkpoints.modules import Stored, stored_modules
from npu_plugins.pipeline.checkpoints.source import Files


class WeightsToLoad:
    """One load of this rank's layers; nothing is changed before `apply`."""

    def __init__(self, engine: Any, files: Files, strict: bool) -> None:
        self.module, self.files, self.strict = engine.module, files, strict
        self.tp, self.tp_rank = engine.mesh.size("tp"), engine.mesh.rank("tp")
        if files.tp not in (1, self.tp) and not files.described:
            raise CheckpointError(
                f"{files.directory} was saved at tp {files.tp} by a program that does not say how it divides "
                f"parameters, and this is tp {self.tp}; load it at tp {files.tp}"
            )
        told, layers = files.description(0), self.module.parts[-1]
        if told is not None and told["parts"][-1] != layers:
            raise CheckpointError(
                f"{files.directory} has {told['parts'][-1]} layers, but this model has {layers}; build the "
                "same layers"
            )
        self._found = [(each, self._states(each)) for each in stored_modules(self.module)]

    def _states(self, stored: Stored) -> list[Mapping[str, torch.Tensor]]:
        present = [index for index in stored.layers if self.files.layer_files(index)]
        return self.files.layer((present or list(stored.layers))[0])

    def check(self) -> None:
        """Refuse layers that do not fit.

        Raises:
            CheckpointError: a layer lacks a parameter or has one too many (with `strict`), or of another
            shape.
        """
        for stored, states in self._found:
            own = stored.module.state_dict(keep_vars=True)
            where = f"layer {stored.layers[0]} in {self.files.directory}"
            missing, more = own.keys() - states[0].keys(), states[0].keys() - own.keys()
            if self.strict and (missing or more):
                raise CheckpointError(
                    f"{where} lacks {sorted(missing) or 'nothing'} and has {sorted(more) or 'nothing'} "
                    f"beyond what {type(stored.module).__name__} has; build the same layers, or pass "
                    "load_module_strict=False"
                )
            for key in own.keys() & states[0].keys():
                if isinstance(own[key], torch.Tensor):
                    self._check_shape(stored.prefix + key, own[key], states, key, where)

    def _check_shape(self, name: str, own: torch.Tensor, states: list[Any], key: str, where: str) -> None:
        if self.files.tp == self.tp:
            wanted, found = list(own.shape), list(states[self.tp_rank][key].shape)
        else:
            wanted = Division.of(own).full_shape(own.shape)
            found = self.files.division(name).full_shape(states[0][key].shape)
        if wanted != found:
            raise CheckpointError(
                f"{name} has shape {found} in {where}, but {wanted} in this model; build the model as it was"
            )

    @torch.no_grad()
    def apply(self) -> None:
        """Load the layers."""
        for stored, states in self._found:
            own = stored.module.state_dict(keep_vars=True)
            local = {key: self._local(stored, states, key, own.get(key)) for key in states[0]}
            stored.module.load_state_dict(local, strict=self.strict)

    def _local(self, stored: Stored, states: list[Mapping[str, Any]], key: str, own: Any) -> Any:
        """This rank's part of what was saved."""
        if self.files.tp == self.tp:
            return states[self.tp_rank][key]
        if not isinstance(own, torch.Tensor):
            return states[0][key]
        full = self.files.division(stored.prefix + key).join([state[key] for state in states])
        return Division.of(own).take(full)

    def value(self, name: str) -> torch.Tensor | None:
        """Return this rank's part of a parameter as it was saved, in the precision of the files."""
        for stored, states in self._found:
            key = name.removeprefix(stored.prefix)
            if name.startswith(stored.prefix) and key in states[0]:
                return self._local(stored, states, key, stored.module.get_parameter(key))
        return None
