"""Reading the state of training at any layout: all ranks look at everything first, then all load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.ranks import Ranks
from npu_plugins.checkpoint.state.counters import restore_counters
from npu_plugins.checkpoint.state.index import MASTER
from npu_plugins.checkpoint.state.reading import StateReader
from npu_plugins.checkpoint.state.saving import NOT_SAVED
from npu_plugins.checkpoint.state.scale import restore_scale
from npu_plugins.checkpoint.state.trained import Piece, Trained, local_shape, stage3_range
from npu_plugins.checkpoint.state.values import restored
from npu_plugins.checkpoint.state.weights import tell_model
from npu_plugins.pipeline.checkpoints.division import Division
from npu_plugins.pipeline.checkpoints.places import KINDS


def load_training_state(trained: Trained, checkpoint: str | Path) -> None:
    """Load weights, optimizer, learning rate and loss scale from a checkpoint; every rank calls this.

    Each rank reads slices of what its own parameters need, a parameter at a time, whatever layout wrote them.

    Args:
        trained: what this rank trains; its weights may have any values.
        checkpoint: the directory with ``training_state`` and the model's safetensors.

    Raises:
        CheckpointError: on every rank, if the checkpoint is damaged or of another model or optimizer on one;
            nothing has been loaded then.
    """
    ranks = Ranks(trained.mesh)
    job = ranks.together(lambda: _Loading(trained, checkpoint))
    untaken = set(job.reader.index.parameters).difference(*ranks.tell(job.reported()))
    if untaken:
        raise CheckpointError(
            f"{checkpoint} has the state of {min(untaken)} and {len(untaken) - 1} more parameters that are "
            "not trained here; build the model, and freeze its parameters, as they were"
        )
    ranks.together(job.load)
    tell_model(trained)


class _Loading:
    """One load of one rank: what it needs, found and looked at; nothing is changed before `load`."""

    def __init__(self, trained: Trained, checkpoint: str | Path) -> None:
        """Look at everything.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        trained.check()
        self.trained, self.reader = trained, StateReader(checkpoint)
        self.pieces = trained.pieces()
        self.names = trained.names()
        self.settings: dict[int, tuple[str, dict[str, Any]]] = {}
        """By group: the name of a parameter of it, and the group's hyperparameters."""
        for piece in self.pieces:
            self._check(piece)
        self._check_steps()
        self.frozen = self._frozen()
        self.buffers = {n: b for n, b in trained.buffers().items() if self.reader.weight(n) is not None}
        for name, tensor in {**self.frozen, **self.buffers}.items():
            self._check_shape(name, tensor)
        self._check_scheduler()

    def _frozen(self) -> dict[str, torch.Tensor]:
        """Return the parameters that are not trained here and that the checkpoint has."""
        trained = {id(piece.parameter) for piece in self.pieces}
        rest = [each for each in self.trained.module.parameters() if id(each) not in trained]
        named = {self.names[id(each)]: each for each in rest if id(each) in self.names}
        return {name: each for name, each in named.items() if self.reader.has_value(name)}

    def reported(self) -> list[str]:
        """Return the parameters that this rank takes; of ranks that take the same, one reports."""
        place, _ = self.trained.replicas
        if place or self.trained.tp_rank:
            return []
        return [piece.name for piece in self.pieces]

    # Looking

    def _check(self, piece: Piece) -> None:
        index, name = self.reader.index, piece.name
        state = index.parameters.get(name)
        if state is None:
            raise CheckpointError(
                f"{self.reader.folder} has no state of {name}, which is trained here; it is of another "
                "model, or of a run in which that parameter was frozen"
            )
        division = Division.of(piece.parameter)
        wanted = tuple(division.full_shape(local_shape(piece.parameter)))
        if state.shape != wanted:
            raise CheckpointError(
                f"{name} has shape {list(state.shape)} in {self.reader.folder}, but {list(wanted)} in this "
                "model; the checkpoint is of another model"
            )
        self.reader.check(name)
        if MASTER not in state.tensors:
            self._check_shape(name, piece.parameter)
        if state.others and not piece.whole():
            raise CheckpointError(
                f"{next(iter(state.others))} of {name} has no number for each element and can be loaded only "
                f"where the parameter is whole; go on with {index.optimizer} at tp 1 × pp 1 without ZeRO"
            )
        settings = index.settings[state.settings]
        first, others = self.settings.setdefault(piece.group, (name, settings))
        if settings != others:
            raise CheckpointError(
                f"{first} and {name} are in one parameter group, but were saved with other hyperparameters "
                f"({others} and {settings}); group the parameters as they were"
            )
        own = piece.optimizer.param_groups[piece.group]
        there, here = ({key for key in KINDS if key in group} for group in (settings, own))
        if there != here:
            raise CheckpointError(
                f"the state of {name} is of {index.optimizer} with {' and '.join(sorted(there)) or 'nothing'}"
                f", but {type(piece.optimizer).__name__} has {' and '.join(sorted(here)) or 'none'}; take "
                "the same optimizer"
            )

    def _check_shape(self, name: str, tensor: torch.Tensor) -> None:
        stored = self.reader.weight(name)
        local = local_shape(tensor) if isinstance(tensor, nn.Parameter) else tuple(tensor.shape)
        wanted = tuple(Division.of(tensor).full_shape(local))
        if stored is None:
            raise CheckpointError(
                f"{self.reader.checkpoint} has no weight {name}, neither in the model's files nor in its "
                "state; the checkpoint is not whole, give another one"
            )
        if stored.shape != wanted:
            raise CheckpointError(
                f"{name} has shape {list(stored.shape)} in {stored.file}, but {list(wanted)} in this model; "
                "the checkpoint is of another model"
            )

    def _check_steps(self) -> None:
        """Refuse parameters in one flat tensor, which has one step, that were not stepped alike."""
        steps: dict[int, tuple[str, dict[str, Any]]] = {}
        for piece in self.pieces:
            scalars = self.reader.index.parameters[piece.name].scalars
            if not scalars:  # it has never been updated
                continue
            first, others = steps.setdefault(id(piece.holder), (piece.name, scalars))
            if scalars != others:
                raise CheckpointError(
                    f"{first} and {piece.name} are updated together here, but were saved with {others} and "
                    f"{scalars}; resume without ZeRO, as they were trained"
                )

    def _check_scheduler(self) -> None:
        own, saved = self.trained.scheduler, self.reader.index.scheduler
        where = self.reader.checkpoint
        if (own is None) != (saved is None):
            has, lacks = ("has", "none is here") if own is None else ("has no", "this run has one")
            raise CheckpointError(
                f"{where} {has} state of a learning-rate scheduler, but {lacks}; resume with the same "
                "scheduler"
            )
        if own is not None and saved and not saved.keys() & own.state_dict().keys():
            raise CheckpointError(
                f"{where} has the state of another learning-rate scheduler, with {', '.join(sorted(saved))}, "
                f"than {type(own).__name__}; resume with the same scheduler"
            )

    # Loading

    @torch.no_grad()
    def load(self) -> None:
        """Load all but what needs other ranks."""
        index = self.reader.index
        self._forget()
        for piece in self.pieces:
            self._put_tensors(piece)
            self._put_scalars(piece, index.parameters[piece.name].scalars)
        for name, tensor in {**self.frozen, **self.buffers}.items():
            self._put_frozen(name, tensor)
        updated: set[tuple[int, int]] = set()  # an offload ratio has a group in two optimizers
        for piece in self.pieces:
            place = (id(piece.optimizer), piece.group)
            if place not in updated:
                _update(piece.optimizer.param_groups[piece.group], self.settings[piece.group][1])
                updated.add(place)
        if self.trained.scheduler is not None:
            self.trained.scheduler.load_state_dict(restored(index.scheduler))
        restore_scale(self.trained, index.loss_scale)
        restore_counters(self.trained.engine, index.counters)

    def _forget(self) -> None:
        """Forget the state of steps that the checkpoint has not seen; flat tensors keep their room."""
        for piece in self.pieces:
            state = piece.optimizer.state.get(piece.holder)
            if not state:
                continue
            if piece.holder is piece.parameter:
                del piece.optimizer.state[piece.holder]
                continue
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.dim() > 0:
                    value.zero_()

    def _put_tensors(self, piece: Piece) -> None:
        state, name = self.reader.index.parameters[piece.name], piece.name
        division = Division.of(piece.parameter)
        targets = {MASTER: piece.holder}
        for key in state.tensors:
            if key != MASTER:
                own = piece.optimizer.state[piece.holder]
                if key not in own:
                    own[key] = torch.zeros_like(piece.holder)
                targets[key] = own[key]
        if piece.length:
            for key, target in targets.items():
                found = self.reader.piece(name, key, division, piece.within, piece.length)
                piece.write(target, found)
        for key in state.others:
            whole = self.reader.whole(name, key).clone()
            piece.optimizer.state[piece.holder][key] = whole.to(piece.holder.device)

    def _put_scalars(self, piece: Piece, scalars: dict[str, Any]) -> None:
        group = piece.optimizer.param_groups[piece.group]
        if "step" in group and "step" in scalars:
            group["step"] = _like(group["step"], scalars["step"])
            scalars = {key: value for key, value in scalars.items() if key != "step"}
        if not scalars:
            return
        state = piece.optimizer.state[piece.holder]
        in_tensors = type(piece.optimizer).__module__.startswith("torch.optim")
        on_device = bool(group.get("capturable") or group.get("fused"))
        for key, saved in scalars.items():
            value = restored(saved)
            if isinstance(value, (int, float)) and key not in state and in_tensors:
                device = piece.holder.device if on_device else "cpu"
                state[key] = torch.tensor(float(value), dtype=torch.float32, device=device)
            else:
                state[key] = _like(state.get(key), value)

    def _put_frozen(self, name: str, tensor: torch.Tensor) -> None:
        """Load what is not trained, as far as the checkpoint has it."""
        target, start = tensor.detach(), 0
        length = target.numel()
        if hasattr(tensor, "ds_tensor"):
            start, length = stage3_range(tensor)
            target = tensor.ds_tensor.data.view(-1)[:length]
        if length:
            found = self.reader.piece(name, MASTER, Division.of(tensor), start, length)
            target.copy_(found.view(target.shape))


def _like(present: Any, value: Any) -> Any:
    """Return a saved number in the kind of the one that is there: a tensor, an int, …"""
    if isinstance(present, torch.Tensor):
        return torch.full_like(present, float(value))
    if isinstance(present, (int, float)) and not isinstance(present, bool):
        return type(present)(value)
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


def _update(group: dict[str, Any], settings: dict[str, Any]) -> None:
    """Give a parameter group its saved hyperparameters."""
    for key, saved in settings.items():
        if key in NOT_SAVED:
            continue
        value = restored(saved)
        present = group.get(key)
        if isinstance(present, torch.Tensor) and not isinstance(value, torch.Tensor):
            present.fill_(value)
        else:
            group[key] = tuple(value) if isinstance(present, tuple) else value
