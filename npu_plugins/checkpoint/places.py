"""Where a model's tensors go when it is laid out for tensor-parallel ranks and pipeline stages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.load import check_stored_as_is, read_config, stored_names, without_weights
from npu_plugins.checkpoint.sharded import Place
from npu_plugins.checkpoint.sources import Source
from npu_plugins.checkpoint.streaming import TensorInfo
from npu_plugins.pipeline.errors import PipelineError
from npu_plugins.pipeline.partition import balanced
from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.sharding import shards_of

_NUMBERED = re.compile(r"(.*?)\.(\d+)\.")


def places_of(source: Source, config: Path, tp: int, pp: int, dtype: torch.dtype | None) -> dict[str, Place]:
    """Return the place of every tensor of a source.

    Matrices are divided as `shard_model` divides them. Stages hold about equally many numbers: a stage is a
    run of what comes before the numbered layers, of these layers, and of what comes after, in the model's
    order.

    Args:
        source: of a Hugging Face model's weights.
        config: directory with its config.json.
        tp: ranks that share a layer.
        pp: stages.
        dtype: that floating tensors are to have; None: their own.

    Raises:
        CheckpointError: the source is not of that model, or cannot be laid out so.
    """
    model = without_weights(read_config(config), None, torch.float32)
    check_stored_as_is(model)
    stored = stored_names(model, cast(Any, source))
    order = [stored[name] for name in model.state_dict() if name in stored]
    order = list(dict.fromkeys([*order, *source.tensors]))
    infos = {name: converted(source.tensors[name], dtype) for name in order}
    try:
        stages = _stages({name: info.numel for name, info in infos.items()}, pp)
        shards = {stored[name]: shard for name, shard in shards_of(model, tp).items() if name in stored}
    except (TensorParallelError, PipelineError) as error:
        raise CheckpointError(
            f"{source.directory} cannot be laid out for tp {tp} × pp {pp}: {error}"
        ) from error
    for name, shard in shards.items():
        if infos[name].shape[shard.dim] != shard.full_size:
            raise CheckpointError(
                f"{name} in {source.directory} has shape {list(infos[name].shape)}, but "
                f"{config / 'config.json'} makes its dim {shard.dim} {shard.full_size} long; give the "
                "configuration of the same model"
            )
    return {name: Place(infos[name], stages[name], shards.get(name)) for name in order}


def converted(info: TensorInfo, dtype: torch.dtype | None) -> TensorInfo:
    """Return what a tensor becomes when floating ones are converted to `dtype`; None: it stays."""
    floating = info.dtype.is_floating_point
    return TensorInfo(dtype, info.shape) if dtype is not None and floating else info


def _stages(numbers: Mapping[str, int], pp: int) -> dict[str, int]:
    """Cut a model into stages; tensors come in the model's order, with how many numbers each has."""
    groups = _layers(list(numbers))
    bounds = balanced([sum(numbers[name] for name in group) for group in groups], pp)
    found = {}
    for stage in range(pp):
        for group in groups[bounds[stage] : bounds[stage + 1]]:
            found.update(dict.fromkeys(group, stage))
    return found


def _layers(names: Sequence[str]) -> list[list[str]]:
    """The names by layer: what comes before the numbered layers, each of these, what comes after."""
    numbered = {name: match for name in names if (match := _NUMBERED.match(name))}
    prefixes = [match.group(1) for match in numbered.values()]
    blocks = max(set(prefixes), key=prefixes.count, default=None)
    before: list[str] = []
    after: list[str] = []
    layers: dict[int, list[str]] = {}
    for name in names:
        match = numbered.get(name)
        if match is not None and match.group(1) == blocks:
            layers.setdefault(int(match.group(2)), []).append(name)
        else:
            (after if layers else before).append(name)
    return [group for group in (before, *(layers[number] for number in sorted(layers)), after) if group]
