"""Writing the state of training: every rank its own pieces, and the first one the index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import DTYPES
from npu_plugins.checkpoint.ranks import Ranks
from npu_plugins.checkpoint.state.counters import counters_of
from npu_plugins.checkpoint.state.index import MASTER, STATE_FOLDER, Fragment, ParameterState, StateIndex
from npu_plugins.checkpoint.state.reading import model_files
from npu_plugins.checkpoint.state.scale import scale_of
from npu_plugins.checkpoint.state.trained import Piece, Trained, local_shape
from npu_plugins.checkpoint.state.values import plain
from npu_plugins.checkpoint.streaming import SafetensorsWriter, TensorInfo
from npu_plugins.pipeline.checkpoints.division import Division
from npu_plugins.pipeline.checkpoints.places import NOT_SETTINGS

_CODES = {dtype: code for code, dtype in DTYPES.items()}

NOT_SAVED = (*NOT_SETTINGS, "foreach", "fused", "capturable", "differentiable")
"""Keys of a parameter group that are no hyperparameters, but say what it has and how a step is computed."""


def save_training_state(trained: Trained, checkpoint: str | Path) -> None:
    """Write ``training_state`` into a checkpoint's directory; every rank of the job calls this.

    Ranks write at once, each what no other has: nothing is gathered. Weights that the model's safetensors in
    the directory hold as the optimizer has them are not written again, so the model is best saved first.

    Args:
        trained: what this rank trains.
        checkpoint: an existing directory, the same for all ranks.

    Raises:
        CheckpointError: on every rank, if one cannot write, or has what cannot be held.
    """
    folder, ranks = Path(checkpoint) / STATE_FOLDER, Ranks(trained.mesh)
    held: dict[str, Any] = {}

    def begin() -> None:
        trained.check()
        if ranks.rank == 0:
            folder.mkdir(exist_ok=True)
            held.update(_held_by_model(Path(checkpoint)))

    ranks.together(begin)
    own = _OwnPart(trained, ranks.first(held), f"rank-{ranks.rank:05d}.safetensors")
    ranks.together(lambda: own.write(folder))
    everyone = ranks.tell(own.plain())

    def finish() -> None:
        if ranks.rank == 0:
            _joined(trained, everyone).write(folder)

    ranks.together(finish)


def _held_by_model(checkpoint: Path) -> dict[str, list[Any]]:
    """Return dtype and shape of what the model's safetensors have."""
    files = model_files(checkpoint)
    if files is None:
        return {}
    return {name: [_CODES[each.dtype], list(each.shape)] for name, each in files.tensors.items()}


class _OwnPart:
    """What one rank writes."""

    def __init__(self, trained: Trained, held: Mapping[str, list[Any]], file: str) -> None:
        """Take what is saved, and what the model's files have."""
        self.trained, self.held, self.file = trained, held, file
        self.settings: list[dict[str, Any]] = []
        self.states: dict[str, ParameterState] = {}

    def write(self, folder: Path) -> None:
        """Write this rank's file, if it has something to write.

        Raises:
            CheckpointError: the optimizer has something that other layouts could not take.
        """
        tensors: dict[str, torch.Tensor] = {}
        for piece in _written_here(self.trained):
            tensors |= self._describe(piece)
        if not self.states:
            return
        infos = {name: TensorInfo(each.dtype, tuple(each.shape)) for name, each in tensors.items()}
        with SafetensorsWriter(folder / self.file, infos, {"format": "pt"}) as writer:
            for name, each in tensors.items():
                writer.write(name, each)

    def _describe(self, piece: Piece) -> dict[str, torch.Tensor]:
        """Note one piece; return its tensors, views of the optimizer's, by their names in the file."""
        division = Division.of(piece.parameter)
        shape = division.full_shape(local_shape(piece.parameter))
        first = Division(division.shard and division.shard.of_rank(0), division.transposed)
        state = ParameterState(tuple(shape), first, self._settings_of(piece))
        found: dict[str, torch.Tensor] = {}
        code = _code(piece.holder, f"the master weight of {piece.name}")
        if self.held.get(piece.name) != [code, list(shape)] or piece.parameter.dtype != piece.holder.dtype:
            found[MASTER], state.tensors[MASTER] = piece.read(piece.holder), code
        for key, value in piece.optimizer.state.get(piece.holder, {}).items():
            what = f"{key} of {piece.name} in {type(piece.optimizer).__name__}"
            if key != "step" and isinstance(value, torch.Tensor) and value.shape == piece.holder.shape:
                found[key], state.tensors[key] = piece.read(value), _code(value, what)
            elif isinstance(value, torch.Tensor) and value.dim() > 0:
                _check_whole(piece, what, value)
                found[key], state.others[key] = value.detach(), (_code(value, what), tuple(value.shape))
            else:
                scalar = value.item() if isinstance(value, torch.Tensor) else value
                state.scalars[key] = plain(scalar, what)
        step = piece.optimizer.param_groups[piece.group].get("step")  # where some optimizers count
        if step is not None:
            state.scalars.setdefault("step", plain(step, f"step of {piece.name}"))
        state.fragments.append(Fragment(self.trained.tp_rank, piece.within, piece.length, self.file))
        self.states[piece.name] = state
        return {f"{piece.name}/{key}": value for key, value in found.items()}

    def _settings_of(self, piece: Piece) -> int:
        group = piece.optimizer.param_groups[piece.group]
        what = f"a parameter group of {type(piece.optimizer).__name__}"
        settings = plain({key: each for key, each in group.items() if key not in (*NOT_SAVED, "step")}, what)
        if settings not in self.settings:
            self.settings.append(settings)
        return self.settings.index(settings)

    def plain(self) -> dict[str, Any]:
        """Return what it wrote, as JSON has it."""
        return {
            "settings": self.settings,
            "parameters": {name: state.plain() for name, state in self.states.items()},
        }


def _written_here(trained: Trained) -> list[Piece]:
    """Return the pieces that this rank writes: of what several ranks hold alike, one has its turn."""
    place, replicas = trained.replicas
    loads = [0] * replicas
    found = []
    for piece in trained.pieces():
        if getattr(piece.parameter, "ds_pipe_replicated", False):
            continue  # a tied weight, which an earlier stage writes
        if trained.is_replicated():
            turn = loads.index(min(loads))
            loads[turn] += piece.length + 1
            if turn != place:
                continue
        whole = Division.of(piece.parameter).shard is None
        if piece.length and not (whole and trained.tp_rank > 0):
            found.append(piece)
    return found


def _check_whole(piece: Piece, what: str, value: torch.Tensor) -> None:
    if not piece.whole():
        raise CheckpointError(
            f"{what} has shape {list(value.shape)} where {list(piece.holder.shape)} are updated: it has no "
            "number for each element, so a layout that divides parameters cannot divide it; take AdamW, or "
            "train without tensor and pipeline parallelism and ZeRO"
        )


def _code(tensor: torch.Tensor, what: str) -> str:
    if tensor.dtype not in _CODES:
        raise CheckpointError(f"{what} is {tensor.dtype}, which is none of {', '.join(_CODES.values())}")
    return _CODES[tensor.dtype]


def _joined(trained: Trained, everyone: list[dict[str, Any]]) -> StateIndex:
    """Return the index of what all ranks wrote.

    Raises:
        CheckpointError: ranks say different things of one parameter.
    """
    settings: list[dict[str, Any]] = []
    parameters: dict[str, ParameterState] = {}
    for told in everyone:
        for each in told["settings"]:
            if each not in settings:
                settings.append(each)
        for name, part in told["parameters"].items():
            state = ParameterState.from_plain(part)
            state.settings = settings.index(told["settings"][state.settings])
            there = parameters.setdefault(name, state)
            if there is not state:
                _check_same(name, there, state)
                there.fragments += state.fragments
    scheduler = trained.scheduler
    return StateIndex(
        trained.layout,
        type(trained.inner()).__name__,
        settings,
        parameters,
        counters_of(trained.engine),
        None if scheduler is None else plain(scheduler.state_dict(), "the learning-rate scheduler's state"),
        scale_of(trained),
    )


def _check_same(name: str, one: ParameterState, other: ParameterState) -> None:
    for what in ("shape", "division", "settings", "scalars", "tensors", "others"):
        if getattr(one, what) != getattr(other, what):
            raise CheckpointError(
                f"ranks have different {what} of {name}: {getattr(one, what)!r} and {getattr(other, what)!r}"
                "; they do not train one model"
            )
