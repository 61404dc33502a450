"""From a Hugging Face directory to a sharded model, every rank reading its own slices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import CheckpointFiles
from npu_plugins.checkpoint.undrawn import Undrawn
from npu_plugins.comm import ProcessMesh
from npu_plugins.tensor_parallel.filling import filled_like, full_shape
from npu_plugins.tensor_parallel.plans import base_prefix
from npu_plugins.tensor_parallel.shard import shard_of
from npu_plugins.tensor_parallel.sharding import shard_model


def load_sharded(
    directory: str | Path,
    mesh: ProcessMesh,
    *,
    dtype: torch.dtype | None = None,
    model_class: Any = None,
    config: Any = None,
    **shard_options: Any,
) -> nn.Module:
    """Load a Hugging Face checkpoint into a model divided over the mesh's ``tp`` axis.

    The model is built without weights and divided, then every rank reads its slices of the safetensors
    straight to its device: a rank's memory holds its share and a few MiB of a file at a time, never a whole
    matrix.

    Args:
        directory: as `save_pretrained` writes it: config.json and safetensors.
        mesh: gives the group and the device.
        dtype: of the model; None: the checkpoint's.
        model_class: the transformers class; None: what config.json names in `architectures`.
        config: instead of the directory's config.json.
        **shard_options: for `shard_model`: plan, gather_logits, weight_gradients.

    Returns:
        The model on `mesh.device`, in eval mode as `from_pretrained` returns it.

    Raises:
        CheckpointError: files are missing or cut short, dtypes are mixed and none was asked for, names and
            shapes are not those of the model, or transformers stores this architecture converted.
        TensorParallelError: as `shard_model`.
    """
    files = CheckpointFiles.open(directory)
    config = read_config(Path(directory)) if config is None else config
    model = without_weights(config, model_class, dtype or files.dtype())
    check_stored_as_is(model)
    names = stored_names(model, files)
    check_shapes(model, files, names)
    tied = _tied(model)
    shard_model(model, mesh, **shard_options)
    _materialize(model, mesh, files, names)
    _check_ties(model, mesh, files, names, tied)
    return model.eval()


def read_config(directory: Path) -> Any:
    """Return the transformers configuration of a directory; code that comes with it is never run.

    Raises:
        CheckpointError: there is none.
    """
    from transformers import AutoConfig

    if not (directory / "config.json").is_file():
        raise CheckpointError(
            f"{directory} has no config.json, which says what model its weights are of; "
            "fetch it, or pass config="
        )
    return AutoConfig.from_pretrained(directory)


def without_weights(config: Any, model_class: Any, dtype: torch.dtype) -> Any:
    """Build the model with its parameters on the meta device and its buffers computed."""
    import transformers
    from accelerate import init_empty_weights

    names = getattr(config, "architectures", None) or []
    if model_class is None:
        known = [getattr(transformers, name) for name in names if hasattr(transformers, name)]
        model_class = known[0] if known else transformers.AutoModelForCausalLM
    build = getattr(model_class, "_from_config", None) or model_class.from_config
    with init_empty_weights(include_buffers=False), Undrawn():
        model = build(config, dtype=dtype)
    model.tie_weights()
    return model


def check_stored_as_is(model: nn.Module) -> None:
    """Refuse architectures whose checkpoints hold other tensors than the model, as those with experts do.

    Raises:
        CheckpointError: transformers converts the weights of this architecture when it loads and saves them.
    """
    try:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    except ImportError:  # transformers before 5.0 converts nothing
        return
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if get_checkpoint_conversion_mapping(kind) or get_checkpoint_conversion_mapping(type(model).__name__):
        raise CheckpointError(
            f"transformers stores the weights of {type(model).__name__} ({kind}) in other pieces than the "
            "model has, which cannot be read or written slice by slice; load it with from_pretrained on "
            "every rank and call shard_model, and save the whole model with save_pretrained"
        )


def stored_names(model: nn.Module, files: CheckpointFiles) -> dict[str, str]:
    """Return the checkpoint's name for each parameter and persistent buffer of a model.

    A checkpoint of the base model alone lacks the prefix of its names, as GPT-2's on the Hub does, and one of
    a model with a head has it where a base model does not. A tied parameter is stored once or with all its
    names.

    Raises:
        CheckpointError: the checkpoint lacks a tensor, or has one that the model does not know.
    """
    wanted = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    wanted |= model.state_dict().keys()
    prefix = base_prefix(model)
    other = f"{getattr(model, 'base_model_prefix', '')}."
    names, missing = {}, []
    for name in sorted(wanted):
        spellings = [name, name.removeprefix(prefix)] if prefix else [name, other + name]
        found = [spelling for spelling in spellings if spelling in files.tensors]
        if found:
            names[name] = found[0]
        else:
            missing.append(name)
    tied = _tied(model)
    missing = [name for name in missing if not any(alias in names for alias in tied.get(name, ()))]
    if missing:
        raise CheckpointError(
            f"{files.directory} lacks {missing[0]} and {len(missing) - 1} more of the {len(wanted)} "
            f"tensors of {type(model).__name__}; is config.json of the same model, and the download whole?"
        )
    unknown = set(files.tensors) - set(names.values())
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or []
    unknown = {name for name in unknown if not any(re.search(pattern, name) for pattern in ignored)}
    if unknown:
        raise CheckpointError(
            f"{files.directory} holds {min(unknown)} and {len(unknown) - 1} more tensors that "
            f"{type(model).__name__} has no place for; pass model_class= of the class that wrote it"
        )
    return names


def _tied(model: nn.Module) -> dict[str, list[str]]:
    """The other names of each parameter that has several."""
    by_id: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        by_id.setdefault(id(parameter), []).append(name)
    return {name: [n for n in names if n != name] for names in by_id.values() for name in names}


def check_shapes(model: nn.Module, files: CheckpointFiles, names: dict[str, str]) -> None:
    """Refuse a checkpoint whose tensors are not of a model's shapes; the model may be divided already.

    Raises:
        CheckpointError: naming the first that is not.
    """
    for name, parameter in model.named_parameters(remove_duplicate=False):
        stored, expected = files.tensors.get(names.get(name, "")), full_shape(parameter)
        if stored is not None and list(stored.shape) != expected:
            raise CheckpointError(
                f"{stored.name} in {stored.file} has shape {list(stored.shape)}, but {name} of "
                f"{type(model).__name__} has {expected}; is config.json of the same model?"
            )


def _check_ties(
    model: nn.Module,
    mesh: ProcessMesh,
    files: CheckpointFiles,
    names: dict[str, str],
    tied: dict[str, list[str]],
) -> None:
    """Refuse a checkpoint that stores a tied weight twice, with different values (a collective)."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    twice = [(n, o) for n, others in tied.items() for o in others if n < o and n in names and o in names]
    for name, other in twice:
        again = read_local(parameters[name], torch.device("cpu"), files, names[name])
        differ = torch.tensor(float(not torch.equal(again, parameters[name].cpu())), device=mesh.device)
        if mesh.group("tp") is not None:  # the difference may be in one rank's part
            dist.all_reduce(differ, op=dist.ReduceOp.MAX, group=mesh.group("tp"))
        if differ.item():
            raise CheckpointError(
                f"{name} and {other} are tied in {type(model).__name__}, but {files.directory} stores both "
                "and they differ; set tie_word_embeddings to false in its config.json, or remove one"
            )


@torch.no_grad()
def _materialize(model: nn.Module, mesh: ProcessMesh, files: CheckpointFiles, names: dict[str, str]) -> None:
    """Replace every parameter on the meta device by one on the mesh's, filled from the checkpoint."""
    made: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            name = f"{path}.{own}" if path else own
            if id(parameter) not in made and name in names:
                local = read_local(parameter, mesh.device, files, names[name])
                made[id(parameter)] = filled_like(parameter, local, mesh.group("tp"))
        for own, buffer in module.named_buffers(recurse=False):
            name = f"{path}.{own}" if path else own
            setattr(module, own, buffer.to(mesh.device))
            if name in names:
                files.read(names[name], getattr(module, own))
    for module in model.modules():
        for own, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(own, made[id(parameter)])


def read_local(
    parameter: nn.Parameter, device: torch.device, files: CheckpointFiles, name: str
) -> torch.Tensor:
    """Return the rank's part of a stored tensor, as `parameter` holds it; only that part is read.

    Args:
        parameter: gives shape, dtype and which part; it may be on the meta device.
        device: of the result.
        files: the checkpoint.
        name: that the checkpoint gives the tensor.

    Raises:
        CheckpointError: the stored tensor has another shape.
    """
    local = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
    transposed = getattr(parameter, "stored_transposed", False)
    stored_way = local.t() if transposed else local
    shard = shard_of(parameter)
    if shard is None:
        files.read(name, stored_way)
        return local
    dim, offset = (1 - shard.dim if transposed else shard.dim), 0
    for start, stop in shard.slices:
        if stop > start:
            files.read(name, stored_way.narrow(dim, offset, stop - start), dim, start)
        offset += stop - start
    stored_way.narrow(dim, offset, shard.local_size - offset).zero_()  # padding
    return local
