"""Writing a plain Hugging Face directory from any source of whole tensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import INDEX_FILE, SINGLE_FILE, check_inside
from npu_plugins.checkpoint.kinds import SHARDED_INDEX
from npu_plugins.checkpoint.manifest import MANIFEST_FILE
from npu_plugins.checkpoint.sources import FileLayout, Source
from npu_plugins.checkpoint.streaming import SafetensorsWriter, TensorInfo

CONFIG = "config.json"
_NO_SMALL_FILES = (
    *(".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf", ".index.json"),
    *(MANIFEST_FILE, SHARDED_INDEX, "latest", "latest_universal", "zero_to_fp32.py", "zero_to_torch.py"),
    *("trainer_state.json", "training_args.json"),
)
"""How the names of files end that hold weights or a training's state, or are about such files."""


def write_hugging_face(
    source: Source,
    directory: Path,
    infos: Mapping[str, TensorInfo],
    *,
    same_files: bool,
    max_file_bytes: int,
) -> None:
    """Write the weights and their index; one tensor is held at a time.

    Args:
        source: of the weights.
        directory: exists.
        infos: what each tensor is to be; those of another dtype are converted.
        same_files: whether the files are those of the source's `layout`, or filled in order.
        max_file_bytes: where a file ends, if they are not.
    """
    layout = source.layout if same_files and source.layout is not None else _filled(infos, max_file_bytes)
    for file in dict.fromkeys(layout.weight_map.values()):
        check_inside(file, source.directory)
        own = {name: infos[name] for name in infos if layout.weight_map[name] == file}
        with SafetensorsWriter(directory / file, own, layout.metadata[file]) as writer:
            for name, info in own.items():
                writer.write(name, source.read(name).to(info.dtype))
    if layout.index_metadata is not None:
        content = {"metadata": layout.index_metadata, "weight_map": layout.weight_map}
        text = json.dumps(content, indent=2, sort_keys=True) + "\n"  # as save_pretrained writes it
        (directory / INDEX_FILE).write_text(text, encoding="utf-8")


def _filled(infos: Mapping[str, TensorInfo], max_file_bytes: int) -> FileLayout:
    groups: list[list[str]] = [[]]
    room = max_file_bytes
    for name, info in infos.items():
        if groups[-1] and info.nbytes > room:
            groups.append([])
            room = max_file_bytes
        groups[-1].append(name)
        room -= info.nbytes
    count = len(groups)
    files = [f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]
    files = [SINGLE_FILE] if count == 1 else files
    weight_map = {name: file for file, names in zip(files, groups, strict=True) for name in names}
    total = {
        "total_parameters": sum(info.numel for info in infos.values()),
        "total_size": sum(info.nbytes for info in infos.values()),
    }
    return FileLayout(weight_map, {file: {"format": "pt"} for file in files}, total if count > 1 else None)


def copy_small_files(source: Path, directory: Path, *, below: bool) -> None:
    """Copy configuration, tokenizer and whatever else is neither weights nor a training's state.

    Args:
        source: directory to copy from.
        directory: exists.
        below: whether folders in it are copied, too.
    """
    for path in sorted(source.rglob("*") if below else source.iterdir()):
        name = path.relative_to(source)
        hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not hidden and not path.name.endswith(_NO_SMALL_FILES):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, directory / name)


def set_dtype(directory: Path, infos: Mapping[str, TensorInfo]) -> None:
    """Let config.json name the dtype of the weights, if they have one; it is left alone where it does.

    Raises:
        CheckpointError: config.json is damaged.
    """
    dtypes = {info.dtype for info in infos.values() if info.dtype.is_floating_point}
    if len(dtypes) != 1:
        return
    name = str(next(iter(dtypes))).removeprefix("torch.")
    content = read_config_json(directory)
    old = [content[key] for key in ("dtype", "torch_dtype") if content.get(key) is not None]
    if (not old and dtypes == {torch.float32}) or old == [name] * len(old) != []:
        return
    for key in [key for key in ("dtype", "torch_dtype") if key in content] or ["dtype"]:
        content[key] = name
    text = json.dumps(content, indent=2, sort_keys=True) + "\n"
    (directory / CONFIG).write_text(text, encoding="utf-8")


def read_config_json(directory: Path) -> dict[str, Any]:
    """Return the content of config.json.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        content = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{directory / CONFIG} cannot be read: {error}; copy the whole directory"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{directory / CONFIG} holds no JSON object; copy the whole directory")
    return content
