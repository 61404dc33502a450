"""Weights in one safetensors file for each tensor-parallel rank of each pipeline stage.

`npu_plugins_sharded.json` says of every tensor its whole shape, the stage that has it, and how it is divided;
``model-pp<stage>-tp<rank>.safetensors`` hold the shards under the names of the whole model. A tensor that is
not divided is in the file of the first tensor-parallel rank.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import DTYPES, open_safetensors
from npu_plugins.checkpoint.kinds import SHARDED_INDEX
from npu_plugins.checkpoint.sources import FileLayout, OptimizerState, Source
from npu_plugins.checkpoint.streaming import SafetensorsWriter, TensorInfo
from npu_plugins.tensor_parallel.shard import Shard

INDEX = SHARDED_INDEX
VERSION = 1
_CODES = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Place:
    """Where a tensor is."""

    info: TensorInfo
    """The whole one's."""
    stage: int
    shard: Shard | None
    """The first rank's shard; None for a whole tensor."""

    @property
    def local(self) -> TensorInfo:
        """What each rank's file holds of it."""
        shape = list(self.info.shape)
        if self.shard is not None:
            shape[self.shard.dim] = self.shard.local_size
        return TensorInfo(self.info.dtype, tuple(shape))

    def ranks(self, tp: int) -> range:
        """The tensor-parallel ranks whose files have it."""
        return range(1 if self.shard is None else tp)


def file_name(stage: int, rank: int) -> str:
    """Return the name of the file of a rank."""
    return f"model-pp{stage:02d}-tp{rank:02d}.safetensors"


def write_sharded(source: Source, directory: Path, places: Mapping[str, Place], tp: int, pp: int) -> None:
    """Write all tensors of a source, each read once; one is held at a time, and its shards.

    Args:
        source: of whole tensors.
        directory: exists.
        places: of every tensor, whose dtype decides what is written.
        tp: files a stage.
        pp: stages.
    """
    for stage in range(pp):
        own = {name: place for name, place in places.items() if place.stage == stage}
        with ExitStack() as stack:
            writers = [
                stack.enter_context(
                    SafetensorsWriter(
                        directory / file_name(stage, rank),
                        {name: place.local for name, place in own.items() if rank in place.ranks(tp)},
                        {"format": "pt"},
                    )
                )
                for rank in range(tp)
            ]
            for name, place in own.items():
                full = source.read(name).to(place.info.dtype)
                for rank in place.ranks(tp):
                    shard = full if place.shard is None else place.shard.of_rank(rank).take(full)
                    writers[rank].write(name, shard)
    layout = source.layout
    index = {
        "format": "npu_plugins.sharded",
        "version": VERSION,
        "tp": tp,
        "pp": pp,
        "tensors": {name: _described(place) for name, place in places.items()},
        "hugging_face": None if layout is None else layout._asdict(),
    }
    (directory / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _described(place: Place) -> dict[str, Any]:
    return {
        "dtype": _CODES[place.info.dtype],
        "shape": list(place.info.shape),
        "stage": place.stage,
        "shard": None if place.shard is None else asdict(place.shard),
    }


class ShardedSource:
    """A directory that `write_sharded` wrote."""

    optimizer: OptimizerState | None = None
    counters: Mapping[str, Any] = {}

    def __init__(self, directory: Path) -> None:
        """Read the index.

        Raises:
            CheckpointError: it is damaged or of a later version.
        """
        self.directory = directory
        try:
            index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
            version = index["version"]
            self.tp, self.pp = int(index["tp"]), int(index["pp"])
            self.places = {name: _place(told) for name, told in index["tensors"].items()}
            told = index["hugging_face"]
            self.layout = None if told is None else FileLayout(**told)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{directory / INDEX} cannot be read ({type(error).__name__}: {error}); copy or convert the "
                "checkpoint again"
            ) from error
        if version != VERSION:
            raise CheckpointError(
                f"{directory / INDEX} is of version {version!r}, but this npu_plugins reads {VERSION}; "
                "install a later one"
            )
        self.tensors = {name: place.info for name, place in self.places.items()}

    def files(self) -> dict[str, dict[str, TensorInfo]]:
        """Return what each file must hold."""
        expected: dict[str, dict[str, TensorInfo]] = {
            file_name(stage, rank): {} for stage in range(self.pp) for rank in range(self.tp)
        }
        for name, place in self.places.items():
            for rank in place.ranks(self.tp):
                expected[file_name(place.stage, rank)][name] = place.local
        return expected

    def read(self, name: str) -> torch.Tensor:
        """Return a whole tensor, put together on the CPU."""
        place = self.places[name]
        full = torch.empty(place.info.shape, dtype=place.info.dtype)
        for rank in place.ranks(self.tp):
            file = self.directory / file_name(place.stage, rank)
            with open_safetensors(file) as opened:
                held = set(opened.keys())
                local = opened.get_tensor(name) if name in held else full.new_empty(0)
                if TensorInfo(local.dtype, tuple(local.shape)) != place.local:
                    raise CheckpointError(
                        f"{file} does not hold {name} as {INDEX} says; copy or convert the checkpoint again"
                    )
                if place.shard is None:
                    full.copy_(local)
                else:
                    place.shard.of_rank(rank).put(full, local)
        return full

    def moments(self, name: str) -> Mapping[str, torch.Tensor]:
        """Return {}: only weights are kept."""
        return {}


def _place(told: Mapping[str, Any]) -> Place:
    shard = told["shard"]
    if shard is not None:
        shard = Shard(**{**shard, "parts": tuple(shard["parts"])})
    return Place(TensorInfo(DTYPES[told["dtype"]], tuple(told["shape"])), int(told["stage"]), shard)
