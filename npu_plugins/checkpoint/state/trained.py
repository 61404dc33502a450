"""A model in training as one rank has it: which parameters are trained, and where their numbers are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import nn

from ds_configs.parallel import ParallelConfig
from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.manifest import Layout
from npu_plugins.comm import ProcessMesh
from npu_plugins.pipeline import hf_names
from npu_plugins.pipeline.checkpoints.division import Division
from npu_plugins.pipeline.checkpoints.places import is_partitioned, places

PEFT_PREFIX, PEFT_BASE = "base_model.model.", ".base_layer."
"""What peft puts before the names of the model that it wraps, and into those of layers with adapters."""


class Piece(NamedTuple):
    """A piece of a trained parameter, and the tensor that the optimizer updates for it."""

    name: str
    """Of the parameter in the Hugging Face model."""
    parameter: nn.Parameter
    optimizer: torch.optim.Optimizer
    """The one that does the arithmetic."""
    group: int
    """Its parameter group."""
    holder: torch.Tensor
    """What that optimizer knows; several parameters may lie in it."""
    start: int
    """Where the piece begins in the holder."""
    within: int
    """Where the piece begins in this rank's part of the parameter."""
    length: int
    """Its elements; 0 where all of the parameter is other replicas'."""

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the piece's elements, flat, of the holder or of a state as large."""
        return tensor.detach().reshape(-1)[self.start : self.start + self.length]

    def write(self, tensor: torch.Tensor, flat: torch.Tensor) -> None:
        """Give the holder, or a state as large, the piece's elements."""
        tensor = tensor.detach()
        if tensor.is_contiguous():
            tensor.view(-1)[self.start : self.start + self.length].copy_(flat)
        else:  # a parameter in channels_last, say, which no other shares its tensor with
            tensor.copy_(flat.view(tensor.shape))

    def whole(self) -> bool:
        """Whether the holder is this parameter, undivided and in its shape."""
        shape = tuple(self.parameter.shape)
        return tuple(self.holder.shape) == shape and Division.of(self.parameter) == Division()


@dataclass(frozen=True)
class Trained:
    """A model, its optimizer, and what else changes while it is trained.

    Args:
        module: whose parameters are trained, without wrappers; a `SplitModel` with pipeline stages.
        optimizer: torch's, or DeepSpeed's around it.
        mesh: of the job; None for a single process.
        engine: DeepSpeed's, if there is one.
        scheduler: of the learning rate, if it is not the engine's.
        scaler: torch's `GradScaler`, for fp16 without DeepSpeed.
    """

    module: nn.Module
    optimizer: Any
    mesh: ProcessMesh | None = None
    engine: Any = None
    scheduler: Any = None
    scaler: Any = None

    @classmethod
    def by_engine(cls, engine: Any, mesh: ProcessMesh | None, scheduler: Any = None) -> Trained:
        """Return what an engine of DeepSpeed's trains.

        Args:
            engine: of any kind.
            mesh: of the job.
            scheduler: if it is not the engine's.
        """
        own = engine.lr_scheduler if scheduler is None else scheduler
        return cls(engine.module, engine.optimizer, mesh, engine, own)

    def check(self) -> None:
        """Refuse what cannot be saved or loaded without gathering.

        Raises:
            CheckpointError: there is no optimizer, it keeps its state elsewhere than in memory, or there are
                ranks but no mesh.
        """
        if self.mesh is None and dist.is_initialized() and dist.get_world_size() > 1:
            raise CheckpointError(
                f"there are {dist.get_world_size()} ranks but no mesh of them; give "
                "ProcessMesh.create(ParallelConfig(dp=…))"
            )
        if self.optimizer is None:
            raise CheckpointError("there is no optimizer, and so no training to save or to go on with")
        on_nvme = ("swap_optimizer", "params_in_nvme_and_cpu")
        if any(getattr(self.optimizer, name, False) for name in on_nvme):
            raise CheckpointError(
                "the optimizer or parameters are on NVMe, which a portable checkpoint does not read; set the "
                'offload device to "cpu", or save with the engine\'s save_checkpoint'
            )

    @property
    def divided_parameters(self) -> bool:
        """Whether ZeRO-3 has divided the parameters themselves."""
        return isinstance(self.optimizer, DeepSpeedZeroOptimizer_Stage3)

    @property
    def layout(self) -> Layout:
        """The degrees, and the stage of ZeRO."""
        stage = 0 if self.engine is None else int(self.engine.zero_optimization_stage())
        return Layout(ParallelConfig() if self.mesh is None else self.mesh.config, stage)

    @property
    def tp_rank(self) -> int:
        """This rank's place among those that share a layer."""
        return 0 if self.mesh is None else self.mesh.rank("tp")

    @property
    def replicas(self) -> tuple[int, int]:
        """This rank's place on the axis of replicas, and how many there are."""
        return (0, 1) if self.mesh is None else (self.mesh.rank("dp"), self.mesh.size("dp"))

    def inner(self) -> torch.optim.Optimizer:
        """Return the optimizer that does the arithmetic."""
        found = self.optimizer
        while hasattr(found, "optimizer"):
            found = found.optimizer
        return found

    def names(self) -> dict[int, str]:
        """Return the Hugging Face name of each parameter that is here, by its identity."""
        if hasattr(self.module, "hf_model"):
            own = hf_names(self.module)
            named = {own[local]: each for local, each in self.module.named_parameters() if local in own}
        else:
            named = dict(self.module.named_parameters())
        return {id(each): _plain(name) for name, each in named.items()}

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the persistent buffers that are here, by their names in the Hugging Face model."""
        whole: Any = getattr(self.module, "hf_model", self.module)
        held = whole.state_dict(keep_vars=True)
        return {
            _plain(name): each
            for name, each in held.items()
            if not isinstance(each, nn.Parameter) and not each.is_meta
        }

    def pieces(self) -> list[Piece]:
        """Return the pieces of trained parameters that this rank updates, in the optimizer's order.

        Raises:
            CheckpointError: a parameter is none of the model's.
        """
        return list(self._pieces(self.names()))

    def _pieces(self, names: dict[int, str]) -> Iterator[Piece]:
        if self.divided_parameters:
            yield from _of_stage3(self.optimizer, names)
        elif isinstance(self.optimizer, DeepSpeedZeroOptimizer):
            yield from _of_stages12(self.optimizer, names)
        elif self.engine is not None:
            inner = self.inner()
            for place in places(self.engine):
                name = _name(names, place.parameter)
                yield Piece(name, place.parameter, inner, *place[2:])
        else:
            inner = self.inner()
            for index, group in enumerate(inner.param_groups):
                for each in group["params"]:
                    yield Piece(_name(names, each), each, inner, index, each, 0, 0, each.numel())

    def is_replicated(self) -> bool:
        """Whether all replicas have the same optimizer state."""
        return self.engine is None or not is_partitioned(self.engine)


def _plain(name: str) -> str:
    """Return what a model without adapters calls a parameter of peft's; other names are left as they are."""
    return name.removeprefix(PEFT_PREFIX).replace(PEFT_BASE, ".")


def local_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """Return the shape of a parameter on this tensor-parallel rank, also where ZeRO-3 has divided it."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _name(names: dict[int, str], parameter: nn.Parameter) -> str:
    name = names.get(id(parameter))
    if name is None:
        raise CheckpointError(
            f"the optimizer has a parameter of shape {list(local_shape(parameter))} that is none of the "
            "model's, so it has no name to be found by at another layout; give it the model's parameters"
        )
    return name


def _of_stages12(optimizer: Any, names: dict[int, str]) -> Iterator[Piece]:
    """Yield the pieces of ZeRO-1's and ZeRO-2's flat partitions, of which each replica has one.

    From the offsets at which DeepSpeed laid the parameters out: with round_robin_gradients its own links
    between parameters and partitions are of another order (0.19.8, stage_1_and_2.py:834).
    """
    for index, group in enumerate(optimizer.bit16_groups):
        replicas = optimizer.real_dp_process_group[index]
        size = optimizer.bit16_groups_flat[index].numel() // dist.get_world_size(group=replicas)
        begin = dist.get_rank(group=replicas) * size
        laid_out = zip(
            optimizer.round_robin_bit16_groups[index], optimizer.round_robin_bit16_offsets[index], strict=True
        )
        offsets = {id(parameter): offset for parameter, offset in laid_out}
        holder = optimizer.single_partition_of_fp32_groups[index]
        for parameter in group:
            offset = offsets[id(parameter)]
            low, high = max(offset, begin), min(offset + parameter.numel(), begin + size)
            place = (low - begin, low - offset, high - low) if low < high else (0, 0, 0)
            yield Piece(_name(names, parameter), parameter, optimizer.optimizer, index, holder, *place)


def _of_stage3(optimizer: Any, names: dict[int, str]) -> Iterator[Piece]:
    """Yield the pieces of ZeRO-3's flat partitions (DeepSpeed 0.19.8, `_create_fp32_partitions`)."""
    for index, group in enumerate(optimizer.fp16_groups):
        holder, offset = optimizer.fp32_partitioned_groups_flat[index], 0
        inner = optimizer.optimizer
        if optimizer.offload_optimizer and optimizer.subgroup_to_device[index] != "cpu":
            inner = optimizer.backup_optimizer  # an offload ratio leaves some groups on the device
        for parameter in group:
            within, length = stage3_range(parameter)
            at = optimizer.sub_group_to_group_id[index]
            yield Piece(_name(names, parameter), parameter, inner, at, holder, offset, within, length)
            offset += parameter.partition_numel()


def stage3_range(parameter: Any) -> tuple[int, int]:
    """Return where this rank's partition of a parameter of ZeRO-3 begins, and how long it is unpadded."""
    size = parameter.partition_numel()
    start = min(dist.get_rank(group=parameter.ds_process_group) * size, parameter.ds_numel)
    return start, min(size, parameter.ds_numel - start)
