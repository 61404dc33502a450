"""Puts saved states where this rank's optimizer keeps them, however it divides and flattens parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from deepspeed.runtime.base_optimizer import ZeROOptimizer

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.pipeline.checkpoints.description import tied_names
from npu_plugins.pipeline.checkpoints.division import Division
from npu_plugins.pipeline.checkpoints.entries import MASTER, SCALE_KEYS, Entry
from npu_plugins.pipeline.checkpoints.places import KINDS, Place, inner_optimizer, is_partitioned, places
from npu_plugins.pipeline.checkpoints.states import SavedStates, UniversalStates


class Restoring:
    """One load of an optimizer's state; nothing is changed before `apply`."""

    def __init__(
        self,
        engine: Any,
        states: SavedStates | UniversalStates,
        saved_weight: Callable[[str], torch.Tensor | None],
        master_only: bool = False,
    ) -> None:
        """Take what is needed.

        Args:
            engine: whose optimizer it is.
            states: of the checkpoint.
            saved_weight: name → this rank's part of the weight in the layer files, if there are any.
            master_only: whether only the master weights are restored.
        """
        self.engine, self.states, self.master_only = engine, states, master_only
        self.saved_weight = saved_weight
        self.inner = inner_optimizer(engine)
        self.tp, self.tp_rank = engine.mesh.size("tp"), engine.mesh.rank("tp")
        self.places = list(places(engine))

    def check(self) -> None:
        """Refuse what cannot be restored.

        Raises:
            CheckpointError: saying of which parameter and why.
        """
        settings: dict[int, tuple[str, Mapping[str, Any]]] = {}
        for place in self.places:
            self._check_copies(place)
            for entry in self.states.entries(place.name):
                self._check_sizes(place, entry)
                first, others = settings.setdefault(place.group, (place.name, entry.settings))
                if not _same(entry.settings, others):
                    raise CheckpointError(
                        f"{first} and {place.name} are in one parameter group, but were saved in groups with "
                        f"other hyperparameters ({others} and {entry.settings}); group the parameters as "
                        "they were, or pass load_optimizer_states=False"
                    )
        for group, (name, saved) in settings.items():
            self._check_kind(name, saved, self.inner.param_groups[group])

    def _check_copies(self, place: Place) -> None:
        """Refuse a tied module's own parameters, of which each stage has another value, at another layout."""
        holders = self.states.holders(place.name)
        if len(holders) < 2 or place.name in tied_names(self.engine.module):
            return
        if self.engine.mesh.rank("pp") not in holders or self.states.files.pp != self.engine.mesh.size("pp"):
            raise CheckpointError(
                f"{place.name} belongs to a tied module but is not tied itself, so that pipeline ranks "
                f"{holders} saved different values of it; name it in tied_weight_attr, or load at pp "
                f"{self.states.files.pp}"
            )

    def _check_sizes(self, place: Place, entry: Entry) -> None:
        shape = self._saved_shape(place)
        wanted = torch.Size(shape).numel()
        for key in entry.tensors():
            found = sum(fragment[key].numel() for fragment in entry.fragments)
            if found != wanted:
                raise CheckpointError(
                    f"{key} of {place.name} has {found} elements in {self.states.files.directory}, but "
                    f"{wanted} make its shape {shape}; the checkpoint is of another model"
                )

    def _check_kind(self, name: str, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        if self.master_only or not saved:
            return
        there, here = ({key for key in KINDS if key in group} for group in (saved, own))
        if there != here:
            raise CheckpointError(
                f"the state of {name} is of an optimizer with {' and '.join(sorted(there)) or 'nothing'}, "
                f"but {type(self.inner).__name__} has {' and '.join(sorted(here)) or 'none'}; take "
                "the same optimizer, or pass load_optimizer_states=False"
            )

    def _saved_shape(self, place: Place) -> list[int]:
        if self.states.tp == self.tp:
            return list(place.parameter.shape)
        full = Division.of(place.parameter).full_shape(place.parameter.shape)
        return self.states.division(place.name).local_shape(full)

    @torch.no_grad()
    def apply(self) -> None:
        """Restore everything, and the model's weights from the master weights; layers are loaded already."""
        if not self.master_only:
            self._clear()
        for place in self.places:
            found = self.states.entries(place.name)
            for key in found[0].tensors():
                if key == MASTER or not self.master_only:
                    self._put(place, key, found)
            if MASTER not in found[0].tensors():  # fp32 without ZeRO: the layers' weights are those
                weight = self.saved_weight(place.name)
                if weight is not None:
                    _write(place, place.holder, weight)
            if not self.master_only:
                self._put_scalars(place, found[0])
                settings = found[0].settings
                self.inner.param_groups[place.group].update(
                    {key: _own(value) for key, value in settings.items()}
                )
        if not self.master_only:
            restore_loss_scale(self.engine, self.states.loss_scale())
        self._tell_model()

    def _clear(self) -> None:
        """Forget the state of steps that the checkpoint has not seen; keep room and kinds of numbers."""
        if not is_partitioned(self.engine) and not hasattr(self.engine.optimizer, "fp32_groups_flat"):
            self.inner.state.clear()
        for holder in dict.fromkeys(place.holder for place in self.places):
            for value in self.inner.state[holder].values():
                if isinstance(value, torch.Tensor) and value.dim() > 0:
                    value.zero_()

    def _put(self, place: Place, key: str, found: list[Entry]) -> None:
        if place.length == 0:
            return
        shape = self._saved_shape(place)
        tensors = [entry.flat(key).reshape(shape) for entry in found]
        if self.states.tp == self.tp:
            local = tensors[self.tp_rank]
        else:
            local = Division.of(place.parameter).take(self.states.division(place.name).join(tensors))
        target = place.holder
        if key != MASTER:
            state = self.inner.state[place.holder]
            if key not in state:
                state[key] = torch.zeros_like(place.holder)
            target = state[key]
        _write(place, target, local)

    def _put_scalars(self, place: Place, entry: Entry) -> None:
        state = self.inner.state[place.holder]
        group = self.inner.param_groups[place.group]
        on_device = bool(group.get("capturable") or group.get("fused"))
        for key, value in entry.scalars.items():
            present = state.get(key)
            if isinstance(present, torch.Tensor):
                present.fill_(float(value))
            elif present is not None:
                state[key] = type(present)(value)
            elif type(self.inner).__module__.startswith("torch.optim"):  # which count in tensors
                device = place.holder.device if on_device else "cpu"
                state[key] = torch.tensor(float(value), dtype=torch.float32, device=device)
            else:
                state[key] = _own(value)

    def _tell_model(self) -> None:
        """Give the model the weights that the master weights round to."""
        optimizer = self.engine.optimizer
        if is_partitioned(self.engine):
            optimizer.update_lp_params()
            # DeepSpeed links parameters and states at the first step; deepspeed.utils.safe_get_* need it now.
            optimizer._hp_optimizer_states_linked = False
            optimizer._lazy_init_hp_params_optimizer_state()
            return
        for place in self.places:
            if place.holder is not place.parameter:
                flat = place.holder.detach().view(-1)[place.start : place.start + place.length]
                place.parameter.copy_(flat.view_as(place.parameter))


def _write(place: Place, target: torch.Tensor, local: torch.Tensor) -> None:
    """Write a piece of this rank's part of a parameter into its place."""
    flat = target.detach().view(-1)[place.start : place.start + place.length]
    flat.copy_(local.reshape(-1)[place.within : place.within + place.length])


def refresh_master(engine: Any) -> None:
    """Take the model's weights for the master weights, where only those were loaded."""
    if hasattr(engine.optimizer, "refresh_fp32_params"):
        engine.optimizer.refresh_fp32_params()


def restore_loss_scale(engine: Any, saved: Mapping[str, Any] | None) -> None:
    """Go on with a dynamic loss scale; a static one is the configuration's."""
    optimizer = engine.optimizer
    scaler = optimizer.loss_scaler if isinstance(optimizer, ZeROOptimizer) and hasattr(
        optimizer, "loss_scaler") else getattr(optimizer, "loss_scale_config", None)  # fmt: skip
    dynamic = getattr(scaler, "dynamic", False) or getattr(scaler, "dynamic_loss_scale", False)
    if saved is None or not dynamic:
        return
    for key in SCALE_KEYS:
        if key in saved and hasattr(scaler, key):
            setattr(scaler, key, saved[key])


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    plain = [
        {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in each.items()}
        for each in (one, other)
    ]
    return plain[0] == plain[1]
