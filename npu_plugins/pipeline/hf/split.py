"""`split_model`: a Hugging Face decoder as a `PipelineModule`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from npu_plugins.comm import ProcessMesh
from npu_plugins.pipeline.config import PipelineConfig
from npu_plugins.pipeline.errors import PipelineError
from npu_plugins.pipeline.hf.draw import without_weights
from npu_plugins.pipeline.hf.families import family_of
from npu_plugins.pipeline.hf.module import SplitModel
from npu_plugins.pipeline.hf.original import check_like, is_checkpointing, stop_checkpointing
from npu_plugins.pipeline.hf.weights import Drawn, Source, Stored, Taken
from npu_plugins.pipeline.module import make_mesh, same_stages
from npu_plugins.tensor_parallel.sharding import shard_model

ATTENTION = ("sdpa", "eager")


def split_model(
    model: Any,
    stages: int | None = None,
    *,
    mesh: ProcessMesh | None = None,
    schedule: str | None = None,
    virtual_stages: int | None = None,
    config: Mapping[str, Any] | str | Path | None = None,
    partition_method: str | Sequence[int] = "parameters",
    dtype: torch.dtype | None = None,
    attn_implementation: str | None = None,
    gather_logits: bool = True,
    activation_checkpoint_interval: int = 0,
    sample_input: Any = None,
) -> SplitModel:
    """Split a Hugging Face decoder into the stages of a pipeline, of which each rank builds its own.

    Where the mesh has a tensor-parallel axis, the layers of a stage are divided over it, as `shard_model`
    divides the whole model.

    Args:
        model: a transformers model, whose weights are taken as they are; one on the meta device, or a
            configuration, whose weights are drawn as transformers does; or a directory that `save_pretrained`
            wrote, of which each stage reads its own tensors.
        stages: ranks of the pipeline; or give `mesh`, or `stages` in the section ``pipeline`` of `config`.
        mesh: of the job, with any tp, pp and dp.
        schedule: of the pipeline, as are `virtual_stages`, `partition_method` and `config`: see
            `PipelineModule`.
        dtype: of the parameters; by default the model's, the configuration's, or the directory's.
        attn_implementation: sdpa or eager; by default the model's, else what transformers chooses.
        gather_logits: with tp > 1, whether all logits come together on each rank before the loss. False
            keeps them divided, `[batch, seq, vocabulary/tp]`, which saves memory and a gather; the loss is
            then the vocabulary-parallel one, and logits of an evaluation stay divided.
        activation_checkpoint_interval: how many layers are recomputed together; 0: none, or each, if the
            model's own activation checkpointing is on, whose place this takes. The configuration's
            ``recomputation`` counts first.
        sample_input: a batch `{"input_ids": …}`, for partition time.

    Returns:
        The module for `npu_plugins.initialize`. Its layers are the embedding, learned positions where the
        model has them (GPT-2), each decoder layer, the norm and the head; a cut may be between any of them.

    The results are those of the model with ``use_cache=False``. Weights are drawn one after the other from
    torch's generator, as by ``AutoModelForCausalLM.from_config``: under one seed they are the same in the
    whole model and at any number of stages, and so is the generator afterwards. Every rank draws all of
    them, and keeps its own.

    Raises:
        PipelineError: the model is none that can be split, was changed after it was built, or has fewer
            layers than there are stages.
        CheckpointError: the directory is not whole, or not of this model.
        TensorParallelError: heads or sizes do not divide over tp.
    """
    settings = PipelineConfig.from_ds_config(config)
    if mesh is None:
        mesh = make_mesh(same_stages(stages, settings.stages))
    model_class, model_config, dtype, source = _origin(model, dtype)
    family = family_of(model_class, model_config)
    model_config = copy.deepcopy(model_config)
    _set_attention(model_config, attn_implementation)
    skeleton, _ = without_weights(model_class, model_config, dtype)
    checkpointing = is_checkpointing(skeleton)
    if isinstance(model, nn.Module):
        check_like(model, skeleton)
        checkpointing |= is_checkpointing(model)
        for name, parameter in model.named_parameters():
            skeleton.get_parameter(name).requires_grad_(parameter.requires_grad)
    stop_checkpointing(skeleton)
    shard_model(skeleton, mesh, gather_logits=gather_logits)
    return SplitModel(
        skeleton,
        family,
        source,
        num_stages=stages,
        mesh=mesh,
        schedule=schedule,
        virtual_stages=virtual_stages,
        config=config,
        partition_method=partition_method,
        activation_checkpoint_interval=activation_checkpoint_interval or int(checkpointing),
        sample_input=sample_input,
    )


def _origin(model: Any, dtype: torch.dtype | None) -> tuple[Any, Any, torch.dtype, Source]:
    """Return the class of the model, its configuration, the dtype, and where its weights are."""
    from transformers import PretrainedConfig, PreTrainedModel

    if isinstance(model, PreTrainedModel):
        kind, config, source = type(model), model.config, Taken(model, dtype)
        dtype = dtype or model.dtype
        empty = any(parameter.device.type == "meta" for parameter in model.parameters())
        return kind, config, dtype, Drawn(kind, config, dtype) if empty else source
    if isinstance(model, PretrainedConfig):
        kind = _class_of(model)
        dtype = dtype or model.dtype or torch.get_default_dtype()
        return kind, model, dtype, Drawn(kind, model, dtype)
    if isinstance(model, (str, Path)):
        stored = Stored(model)
        config = _read_config(Path(model))
        return _class_of(config), config, dtype or stored.files.dtype(), stored
    raise PipelineError(
        f"model is a {type(model).__name__}; give a transformers model, its configuration, or a directory "
        "that save_pretrained wrote"
    )


def _class_of(config: Any) -> Any:
    import transformers

    for name in getattr(config, "architectures", None) or []:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    mapping = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in mapping:
        raise PipelineError(
            f"{type(config).__name__} ({config.model_type}) is of no causal language model; give one of those"
        )
    return mapping[type(config)]


def _read_config(directory: Path) -> Any:
    from transformers import AutoConfig

    if not (directory / "config.json").is_file():
        raise PipelineError(f"{directory} has no config.json, which says what model it is; fetch it")
    return AutoConfig.from_pretrained(directory)


def _set_attention(config: Any, wanted: str | None) -> None:
    chosen = wanted or config._attn_implementation
    if chosen is not None and chosen not in ATTENTION:
        raise PipelineError(
            f"attn_implementation is {chosen!r}, which is not tried with stages; choose "
            f"{' or '.join(ATTENTION)}"
        )
    if chosen is not None:
        config._attn_implementation = chosen
