"""From a sharded model to one plain Hugging Face directory."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import INDEX_FILE, SINGLE_FILE, CheckpointFiles, StoredTensor
from npu_plugins.checkpoint.load import check_stored_as_is, stored_names
from npu_plugins.checkpoint.parts import Kind, Parts, parts_of
from npu_plugins.comm import ProcessMesh

MAX_FILE_BYTES = 5 * 10**9

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf", ".index.json")
"""How the names of files with weights, or about their files, end; all others are copied from a source."""


def save_hf(
    model: nn.Module,
    mesh: ProcessMesh,
    directory: str | Path,
    *,
    source: str | Path | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write a model divided over the mesh's ``tp`` and ``pp`` axes as `save_pretrained` would the whole one.

    Every rank of the mesh calls this, and returns when the files are complete. The ranks with data-parallel
    place 0 put one matrix after another together; the first of them writes, and holds one file's tensors at
    most. All values are written as they are, bit for bit.

    Args:
        model: as `shard_model`, `load_sharded` or `split_model` left it, after any training.
        mesh: the same mesh.
        directory: is made if it is not there.
        source: the directory that the model was loaded from: its config, tokenizer and all other small files
            are copied as they are, and tensors go to files of the same names. None: the model's own config is
            written, and tensors fill files in order.
        max_file_bytes: where a file ends, without `source`.

    Raises:
        CheckpointError: transformers stores this architecture converted; the source is of another model or
            dtype, or is the directory itself; parameters are not whole shards (ZeRO-3), or stages of a
            pipeline that `split_model` did not make; or the files cannot be written.
    """
    directory = Path(directory)
    parts = parts_of(model, mesh)
    check_stored_as_is(parts.model)
    if source is None:
        layout = _fill_files(parts, max_file_bytes)
    else:
        layout = _files_of(parts, Path(source), directory)
    problem = _write(layout, parts, mesh, directory, source) if mesh.rank("dp") == 0 else None
    agree(problem, mesh, directory)


@dataclass(frozen=True)
class _Layout:
    """Which tensors go to which file."""

    files: Mapping[str, Mapping[str, str | StoredTensor]]
    """By file: the stored names, and each one's name in the model, or where it is copied from."""
    metadata: Mapping[str, Mapping[str, str] | None]
    index: str | None
    """Content of the index file."""


def _fill_files(parts: Parts, max_file_bytes: int) -> _Layout:
    if max_file_bytes < 1:
        raise CheckpointError(f"max_file_bytes is {max_file_bytes}; give a size above 0")
    groups: list[list[str]] = [[]]
    room, total = max_file_bytes, 0
    for name, kind in parts.kinds.items():
        if groups[-1] and kind.nbytes > room:
            groups.append([])
            room = max_file_bytes
        groups[-1].append(name)
        room, total = room - kind.nbytes, total + kind.nbytes
    count = len(groups)
    names = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    names = [SINGLE_FILE] if count == 1 else names
    files = {file: {key: key for key in keys} for file, keys in zip(names, groups, strict=True)}
    index = None
    if count > 1:
        weight_map = {key: file for file, keys in files.items() for key in sorted(keys)}
        parameters = sum(torch.Size(kind.shape).numel() for kind in parts.kinds.values())
        about = {"total_parameters": parameters, "total_size": total}
        content = {"metadata": about, "weight_map": dict(sorted(weight_map.items()))}
        index = json.dumps(content, indent=2) + "\n"
    return _Layout(files, {file: {"format": "pt"} for file in names}, index)


def _files_of(parts: Parts, source: Path, directory: Path) -> _Layout:
    """The layout of the checkpoint at `source`, which must be one of this model."""
    if directory.resolve() == source.resolve():
        raise CheckpointError(
            f"directory and source are both {source}: files would be overwritten while they are read; "
            "give another directory"
        )
    stored = CheckpointFiles.open(source)
    names = {there: here for here, there in stored_names(parts.model, stored).items()}
    aliases = parts.first_names()
    files: dict[str, dict[str, str | StoredTensor]] = {}
    for there, tensor in stored.tensors.items():
        here = names.get(there)
        entry = tensor if here is None else aliases[here]
        files.setdefault(tensor.file.name, {})[there] = entry
        if isinstance(entry, str):
            _check_same_kind(entry, parts.kinds[entry], tensor)
    index = None
    if stored.index is not None:
        index = (source / INDEX_FILE).read_text(encoding="utf-8")
    return _Layout(files, stored.metadata, index)


def _check_same_kind(name: str, kind: Kind, stored: StoredTensor) -> None:
    if stored.dtype != kind.dtype or list(stored.shape) != kind.shape:
        raise CheckpointError(
            f"{name} is {kind.dtype} of shape {kind.shape}, but the source has {stored.name} as "
            f"{stored.dtype} of shape {list(stored.shape)}, and its config.json says so; convert the model "
            "first, or leave source out"
        )


def _write(
    layout: _Layout, parts: Parts, mesh: ProcessMesh, directory: Path, source: str | Path | None
) -> Exception | None:
    """Put the tensors together on all ranks of the group, and write them on its first.

    A problem is returned, not raised: the other ranks go on to put tensors together, and are told in the end.
    """
    writes, problem = mesh.rank("model") == 0, None
    for file, entries in layout.files.items():
        full = dict(_whole(entries, parts, mesh, keep=writes and problem is None))
        if not writes or problem is not None:
            continue
        try:
            directory.mkdir(parents=True, exist_ok=True)
            save_file(full, directory / file, dict(layout.metadata[file] or {}) or None)
        except Exception as error:  # whatever it is, the other ranks wait for this one and are told
            problem = error
    if writes and problem is None:
        try:
            if layout.index is not None:
                (directory / INDEX_FILE).write_text(layout.index, encoding="utf-8")
            _write_small(parts, directory, source)
        except Exception as error:  # transformers raises what it likes, for settings of generation above all
            problem = error
    return problem


def _whole(
    entries: Mapping[str, str | StoredTensor], parts: Parts, mesh: ProcessMesh, keep: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each stored name and its whole tensor on the CPU, if it is to be kept; a collective anyway."""
    for there, entry in entries.items():
        if isinstance(entry, StoredTensor):  # not the model's own: a mask of old GPT-2 checkpoints
            if keep:
                copied = torch.empty(entry.shape, dtype=entry.dtype)
                CheckpointFiles(entry.file.parent, {there: entry}, None, {}).read(there, copied)
                yield there, copied
            continue
        full = parts.put_together(entry, mesh)
        if keep and full is not None:
            yield there, full.contiguous().cpu()


def _write_small(parts: Parts, directory: Path, source: str | Path | None) -> None:
    """Write or copy everything that is no weight."""
    if source is None:
        model = parts.model
        config: Any = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        dtype = next(kind.dtype for kind in parts.kinds.values() if kind.dtype.is_floating_point)
        setattr(config, "dtype" if hasattr(config, "dtype") else "torch_dtype", dtype)
        config.save_pretrained(directory)
        generation = getattr(model, "generation_config", None)
        if generation is not None:
            generation.save_pretrained(directory)
        return
    source = Path(source)
    for path in sorted(source.rglob("*")):
        below = path.relative_to(source)
        hidden = any(part.startswith(".") for part in below.parts)
        if path.is_file() and not hidden and not path.name.endswith(WEIGHTS):
            (directory / below).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, directory / below)


def agree(problem: Exception | None, mesh: ProcessMesh, directory: Path) -> None:
    """Wait for the rank that writes, and fail on every rank if it failed."""
    failed = torch.tensor(float(problem is not None), device=mesh.device)
    for axis in ("model", "dp"):
        group = mesh.group(axis)
        if group is not None:
            dist.all_reduce(failed, op=dist.ReduceOp.MAX, group=group)
    if problem is not None:
        raise CheckpointError(f"{directory} cannot be written: {' '.join(str(problem).split())}") from problem
    if failed.item():
        raise CheckpointError(f"{directory} could not be written by the first rank; its message says why")
