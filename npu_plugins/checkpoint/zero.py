"""DeepSpeed's own checkpoints of models without tensor or pipeline parallelism: ZeRO stages 0 to 3.

Every rank's optimizer file holds its partition of the master weights and of the optimizer's tensors, flat.
Stages 1 and 2 write beside them which piece of which parameter lies where (``param_slice_mappings``); stage 3
cuts every parameter into equal pieces, the last one padded, in the order of ``param_shapes``. Files are
mapped into memory and read piece by piece, where DeepSpeed's `zero_to_fp32.py` holds all master weights
twice, and its `ds_to_universal.py` every file whole; and nothing is unpickled but what `torch_files` allows,
where both unpickle anything. That the results are the same bits is tested. (DeepSpeed 0.19.8.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from deepspeed.checkpoint.constants import (
    BASE_OPTIMIZER_STATE,
    BUFFER_NAMES,
    DS_VERSION,
    FP32_FLAT_GROUPS,
    FROZEN_PARAM_FRAGMENTS,
    FROZEN_PARAM_SHAPES,
    OPTIMIZER_STATE_DICT,
    PARAM_GROUPS,
    PARAM_SHAPES,
    PARAM_SLICE_MAPPINGS,
    PARTITION_COUNT,
    SINGLE_PARTITION_OF_FP32_GROUPS,
    ZERO_STAGE,
)

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.kinds import MODEL_FILE, OPTIMIZER_FILE
from npu_plugins.checkpoint.sources import FileLayout, OptimizerState
from npu_plugins.checkpoint.streaming import TensorInfo
from npu_plugins.checkpoint.torch_files import read_torch
from npu_plugins.checkpoint.universal import counters_of

_NOT_COMMON = (
    BASE_OPTIMIZER_STATE,
    PARAM_SLICE_MAPPINGS,
    SINGLE_PARTITION_OF_FP32_GROUPS,
    FP32_FLAT_GROUPS,
    OPTIMIZER_STATE_DICT,
    "group_paddings",
    "param_alignment_paddings",
    PARTITION_COUNT,
    ZERO_STAGE,
)
"""What of an optimizer file is about partitions, or is the state itself."""


class Piece(NamedTuple):
    """A part of a parameter in one rank's flat tensors."""

    rank: int
    group: int
    start: int
    length: int


class ZeroFiles:
    """The files of a checkpoint, those of the optimizer read when they are needed."""

    def __init__(self, directory: Path) -> None:
        """Find the files and read the first rank's model states.

        Raises:
            CheckpointError: they are not all there, or not of a layout with one tensor-parallel rank and
                stage.
        """
        self.directory = directory
        names = [path.name for path in directory.iterdir()]
        models = [match.groups() for name in names if (match := MODEL_FILE.fullmatch(name))]
        if not models:
            raise CheckpointError(f"{directory} has no model states; copy the whole checkpoint")
        if len({rank is None for rank, _ in models}) > 1:
            raise CheckpointError(f"{directory} mixes model states of ZeRO stage 3 and others; copy one save")
        if {mp for _, mp in models} != {"00"}:
            raise CheckpointError(
                f"{directory} was written by {len({mp for _, mp in models})} tensor-parallel ranks or "
                "pipeline stages; load it into the job that wrote it and save the model from there (save_hf)"
            )
        experts = sorted(name for name in names if "_expert_" in name or name.startswith("expp_rank_"))
        if experts:
            raise CheckpointError(
                f"{directory} keeps experts in files of their own ({experts[0]}); save the model from the "
                "job that wrote it"
            )
        self.stage3 = models[0][0] is not None
        prefix = "zero_pp_rank_0_" if self.stage3 else ""
        self.states = read_torch(directory / f"{prefix}mp_rank_00_model_states.pt")
        if not isinstance(self.states, Mapping) or "module" not in self.states:
            raise CheckpointError(f"{directory}: its model states hold no module; they are not DeepSpeed's")
        self.world = int(self.states.get("dp_world_size", 1))
        zero = (self.states.get("ds_config") or {}).get("zero_optimization") or {}
        if zero.get("round_robin_gradients") and self.world > 1 and not self.stage3:
            # DeepSpeed 0.19.8 reorders parameters for it and notes the places of the order before.
            raise CheckpointError(
                f"{directory} was trained with round_robin_gradients, with which DeepSpeed notes wrong "
                "places of parameters; save the model from the job that wrote it"
            )
        self.optimizer_files = sorted(name for name in names if OPTIMIZER_FILE.fullmatch(name))

    @cached_property
    def ranks(self) -> list[Mapping[str, Any]]:
        """What each rank's optimizer saved; [] where no ZeRO optimizer did.

        Raises:
            CheckpointError: a rank's file is missing, or they do not belong together.
        """
        found = {int(OPTIMIZER_FILE.fullmatch(name)[1]): name for name in self.optimizer_files}  # type: ignore[index]
        if not found:
            return []
        missing = [rank for rank in range(self.world) if rank not in found]
        if missing or len(self.optimizer_files) != self.world:
            raise CheckpointError(
                f"{self.directory} has {len(self.optimizer_files)} optimizer files of {self.world} ranks"
                + (f", rank {missing[0]}'s is missing" if missing else ", from two saves")
                + "; copy the whole checkpoint, and no other beside it"
            )
        states = [
            read_torch(self.directory / found[rank])[OPTIMIZER_STATE_DICT] for rank in range(self.world)
        ]
        stages = {int(state[ZERO_STAGE]) for state in states if ZERO_STAGE in state}
        if len(stages) > 1 or (3 in stages) != self.stage3:
            raise CheckpointError(
                f"{self.directory} mixes files of ZeRO stages {sorted(stages)}; copy one save"
            )
        return states

    @property
    def zero_stage(self) -> int:
        """The stage that wrote it; 0 without ZeRO."""
        return int(self.ranks[0].get(ZERO_STAGE, 0)) if self.ranks else 0

    def pieces(self) -> dict[str, list[Piece]]:
        """Return where each trained parameter's pieces are, in order."""
        found: dict[str, list[Piece]] = {}
        if not self.stage3:
            for rank, state in enumerate(self.ranks):
                for group, addresses in enumerate(state[PARAM_SLICE_MAPPINGS]):
                    for name, address in addresses.items():
                        piece = Piece(rank, group, int(address.start), int(address.numel))
                        found.setdefault(name, []).append(piece)
            return found
        shapes_by_group = self.states[PARAM_SHAPES]
        for group, shapes in enumerate(shapes_by_group):
            offset = 0
            for name, shape in shapes.items():
                numbers = torch.Size(shape).numel()
                part = -(-numbers // self.world)
                for rank in range(self.world):
                    length = max(0, min(part, numbers - rank * part))
                    found.setdefault(name, []).append(Piece(rank, group, offset, length))
                offset += part
            for state in self.ranks:
                flats = state[FP32_FLAT_GROUPS]
                experts = state.get("ds_zero_partition_groups")
                if experts or len(flats) != len(shapes_by_group) or flats[group].numel() < offset:
                    raise CheckpointError(
                        f"{self.directory} divides parameters otherwise than between all {self.world} ranks "
                        "(experts?); save the model from the job that wrote it"
                    )
        return found

    def flat(self, piece: Piece, key: str | None) -> torch.Tensor:
        """Return a piece of the master weight (key None), or of an optimizer's tensor."""
        state = self.ranks[piece.rank]
        if key is not None:
            whole = self.inner(piece.rank)[piece.group][key]
        else:
            whole = state[FP32_FLAT_GROUPS if self.stage3 else SINGLE_PARTITION_OF_FP32_GROUPS][piece.group]
        return whole.detach().view(-1).narrow(0, piece.start, piece.length)

    def inner(self, rank: int) -> Mapping[int, Mapping[str, Any]]:
        """Return a rank's optimizer state by group; {} if it was saved without."""
        key = OPTIMIZER_STATE_DICT if self.stage3 else BASE_OPTIMIZER_STATE
        held = self.ranks[rank].get(key) or {}
        return held.get("state", {}) if isinstance(held, Mapping) else {}


def common_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a ZeRO optimizer's saved state has that is not about partitions: loss scale, clipping."""
    return {key: value for key, value in state.items() if key not in _NOT_COMMON}


class ZeroSource:
    """A checkpoint of `DeepSpeedEngine.save_checkpoint`, with master weights where there are any."""

    layout: FileLayout | None = None

    def __init__(self, directory: Path) -> None:
        """Read the small files, and map the others.

        Raises:
            CheckpointError: as `ZeroFiles`, or sizes do not add up.
        """
        self.directory = directory
        self._files = ZeroFiles(directory)
        states = self._files.states
        self._shapes = {
            name: tuple(shape) for group in states.get(PARAM_SHAPES) or [] for name, shape in group.items()
        }
        self._pieces = self._files.pieces() if self._files.ranks else {}
        self._whole = self._whole_tensors()
        aliases = dict(states.get("shared_params") or {})
        order = [*states["module"], *self._shapes]
        names = [name for name in dict.fromkeys(order) if name in self._pieces or name in self._whole]
        self.tensors = {name: self._info(name) for name in names if name not in aliases}
        for name in self._pieces:
            held = sum(piece.length for piece in self._pieces[name])
            if held != torch.Size(self._shapes.get(name, ())).numel():
                raise CheckpointError(
                    f"{directory} holds {held} numbers of {name}, whose shape is "
                    f"{list(self._shapes.get(name, ()))}; copy the whole checkpoint"
                )

    def _whole_tensors(self) -> dict[str, torch.Tensor | list[torch.Tensor]]:
        """What is no part of ZeRO's partitions: buffers, frozen parameters, everything where there is no
        ZeRO.

        A frozen parameter of stage 3 is a list of the ranks' parts.
        """
        states, module = self._files.states, self._files.states["module"]
        if not self._files.ranks and not self._files.stage3:
            return dict(module)
        found: dict[str, Any] = {
            name: module[name] for name in states.get(BUFFER_NAMES) or [] if name in module
        }
        frozen = states.get(FROZEN_PARAM_SHAPES) or {}
        self._shapes.update({name: tuple(shape) for name, shape in frozen.items()})
        if not self._files.stage3:
            found.update({name: (states.get(FROZEN_PARAM_FRAGMENTS) or module)[name] for name in frozen})
            return found
        if frozen:
            files = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(self._files.world)]
            fragments = [read_torch(self.directory / name)[FROZEN_PARAM_FRAGMENTS] for name in files]
            found.update({name: [each[name] for each in fragments] for name in frozen})
        return found

    def _info(self, name: str) -> TensorInfo:
        if name in self._pieces:
            return TensorInfo(self._files.flat(self._pieces[name][0], None).dtype, self._shapes[name])
        held = self._whole[name]
        if isinstance(held, list):
            return TensorInfo(held[0].dtype, self._shapes[name])
        return TensorInfo(held.dtype, tuple(held.shape))

    @property
    def zero_stage(self) -> int:
        """The stage that wrote it."""
        return self._files.zero_stage

    @property
    def optimizer(self) -> OptimizerState | None:
        """Of the ZeRO optimizer; None where none was saved.

        Raises:
            CheckpointError: another one was saved, whose state has no names.
        """
        files = self._files
        if not files.ranks and files.states.get("optimizer") is not None:
            raise CheckpointError(
                f"{self.directory} was saved without ZeRO, which keeps the optimizer's state by the place of "
                "a parameter, not by its name; convert it to hf or sharded, or save it from a job with ZeRO "
                "stage 1"
            )
        if not files.ranks or not files.inner(0):
            return None
        first = files.ranks[0]
        inner = first[OPTIMIZER_STATE_DICT if files.stage3 else BASE_OPTIMIZER_STATE]
        step = next(iter(files.inner(0).values())).get("step", 0)
        return OptimizerState(step, list(inner[PARAM_GROUPS]), common_state(first))

    @property
    def counters(self) -> Mapping[str, Any]:
        """DeepSpeed's counts and the scheduler's state."""
        return counters_of(self._files.states)

    @property
    def world(self) -> int:
        """Data-parallel ranks that wrote it."""
        return self._files.world

    @property
    def version(self) -> str | None:
        """DeepSpeed's version that wrote it."""
        return self._files.states.get(DS_VERSION)

    def read(self, name: str) -> torch.Tensor:
        """Return a weight: the master's, where there is one."""
        if name in self._pieces:
            return self._joined(name, self._pieces[name], None)
        held = self._whole[name]
        if isinstance(held, list):
            numbers = torch.Size(self._shapes[name]).numel()
            return torch.cat([part.view(-1) for part in held])[:numbers].reshape(self._shapes[name])
        return held

    def moments(self, name: str) -> Mapping[str, torch.Tensor]:
        """Return the optimizer's tensors for a parameter."""
        return {key: self._joined(name, self._pieces[name], key) for key in self.moments_of(name)}

    def moments_of(self, name: str) -> list[str]:
        """Return the names of the optimizer's tensors for a parameter; [] if it has none."""
        pieces = self._pieces.get(name)
        if not pieces:
            return []
        state = self._files.inner(pieces[0].rank).get(pieces[0].group, {})
        return [key for key, value in state.items() if isinstance(value, torch.Tensor) and value.dim() > 0]

    def _joined(self, name: str, pieces: Sequence[Piece], key: str | None) -> torch.Tensor:
        parts = [self._files.flat(piece, key) for piece in pieces]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(self._shapes[name])
