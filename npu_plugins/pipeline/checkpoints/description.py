"""What is written beside DeepSpeed's own keys into each ``mp_rank_NN_model_states.pt``.

An optimizer without ZeRO saves its state by position: first parameter, second, … of that rank. At another
layout a rank has other parameters, so the names are needed; and to divide or join what tensor parallelism
divides, the shards. All of it is plain values under one key, which DeepSpeed hands on as client state.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint.affine import AFFINE_MAP_FORMAT_VERSION, contiguous_split_map, sub_param_map
from deepspeed.checkpoint.constants import (
    AFFINE_MAP,
    AFFINE_MAP_PARAMS,
    AFFINE_MAP_VERSION,
    TP_REPLICATED_PARAMETER_PATTERNS,
    UNIVERSAL_CHECKPOINT_INFO,
    UNIVERSAL_CHECKPOINT_VERSION_KEY,
    UNIVERSAL_CHECKPOINT_VERSION_VALUE,
)

from npu_plugins.checkpoint.manifest import model_digest
from npu_plugins.pipeline.checkpoints.division import Division
from npu_plugins.pipeline.checkpoints.modules import stored_modules
from npu_plugins.pipeline.checkpoints.places import hyperparameters, named_groups
from npu_plugins.tensor_parallel.shard import Shard

KEY = "npu_plugins_pipeline"
FORMAT = 1


def describe(engine: Any) -> dict[str, Any]:
    """Return the description of what this rank saves."""
    module = engine.module
    has_optimizer = engine.optimizer is not None
    return {
        "format": FORMAT,
        "groups": named_groups(engine) if has_optimizer else [],
        "hyperparameters": hyperparameters(engine) if has_optimizer else [],
        "modules": {each.prefix: list(each.layers) for each in stored_modules(module)},
        "hf_names": hf_names_of(module),
        "parameters": {name: _described(value) for name, value in _all_names(module)},
        "schedule": module.schedule_name,
        "parts": list(module.parts),
        "stages": list(module.own_stages),
        "copies": sorted(copies(module)),
        "calls": module.calls,
    }


def copies(module: Any) -> set[str]:
    """Return the names of the tied weights of which an earlier pipeline rank has the first copy."""
    return {name for name in tied_names(module) if module.get_parameter(name).ds_pipe_replicated}


def tied_names(module: Any) -> set[str]:
    """Return the names of the parameters that stages share."""
    return {
        f"tied_modules.{key}.{attribute}"
        for key, attributes in module.tied_weight_attrs.items()
        for attribute in attributes
    }


def hf_names_of(module: Any) -> dict[str, str]:
    """Parameters' names in the Hugging Face model by those in the pipeline, if it is one of such a model."""
    if not hasattr(module, "hf_model"):
        return {}
    from npu_plugins.pipeline.hf.names import hf_names  # needs transformers, which other pipelines do without

    return hf_names(module)


def _all_names(module: Any) -> Any:
    """Parameters by name, those that have two twice: a layer's file has both."""
    return module.named_parameters(remove_duplicate=False)


def _described(parameter: torch.Tensor) -> dict[str, Any]:
    return {"shape": list(parameter.shape), **Division.of(parameter).plain()}


def identity(engine: Any) -> str:
    """Return the digest of the model, the same at every layout; all ranks of a pipeline call this."""
    module = engine.module
    if hasattr(module, "hf_model"):
        return model_digest(module.config)
    shapes: dict[str, list[int]] = {}
    for stage in engine.control.of_pipeline(
        {name: Division.of(value).full_shape(value.shape) for name, value in module.named_parameters()}
    ):
        shapes |= stage
    return model_digest({"pipeline": shapes})


def write_config(module: Any, directory: Path) -> None:
    """Write config.json, if it is a Hugging Face model."""
    if hasattr(module, "hf_model"):
        config = copy.deepcopy(module.config)
        config.architectures = [module.model_class.__name__]
        config.save_pretrained(directory)


def universal_info(engine: Any) -> dict[str, Any]:
    """Return what ``ds_to_universal.py`` needs to join tensor-parallel shards; all ranks of a pipeline call.

    The converter reads the first stage's file alone, so every stage is told of there. Padding is kept, as a
    part of the joined tensor: a reader drops it by the description.
    """
    info: dict[str, Any] = {UNIVERSAL_CHECKPOINT_VERSION_KEY: UNIVERSAL_CHECKPOINT_VERSION_VALUE}
    if engine.mesh.size("tp") == 1 or engine.optimizer is None:
        return info
    trained = {name for group in named_groups(engine) for name in group}
    named = engine.module.named_parameters()
    own = {name: _described(value) for name, value in named if name in trained}
    maps: dict[str, Any] = {}
    replicated: list[str] = []
    for stage in engine.control.of_pipeline(own):
        for name, described in stage.items():
            shard = Division.from_plain(described).shard
            pattern = f"^{re.escape(name)}$"
            if shard is not None:
                maps[pattern] = affine_map(described["shape"], shard)
            elif pattern not in replicated:
                replicated.append(pattern)
    info[TP_REPLICATED_PARAMETER_PATTERNS] = replicated
    info[AFFINE_MAP] = {AFFINE_MAP_VERSION: AFFINE_MAP_FORMAT_VERSION, AFFINE_MAP_PARAMS: maps}
    return info


def affine_map(local_shape: list[int], shard: Shard) -> dict[str, Any]:
    """Return DeepSpeed's description of a divided parameter, of which a rank has `local_shape`."""
    lengths = shard.parts or (shard.local_size * shard.size,)
    widths = [[length // shard.size] * shard.size for length in lengths]
    shape = list(local_shape)
    shape[shard.dim] = sum(lengths)
    if shard.parts:
        return sub_param_map(shape, shard.parts, widths, shard.dim).to_dict()
    return contiguous_split_map(shape, widths[0], shard.dim).to_dict()


UNIVERSAL_KEY = UNIVERSAL_CHECKPOINT_INFO
