"""A Hugging Face checkpoint directory: which safetensors file holds which tensor, and slices of them.

The formats are those that `save_pretrained` writes: one `model.safetensors`, or several files and
`model.safetensors.index.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from npu_plugins.checkpoint.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# safetensors maps a file and hands out views: every page once read stays resident until the file is closed.
# It is opened again after this many bytes, so that a reader of slices holds its own share and not the file.
WINDOW_BYTES = 4 << 20

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor of a checkpoint is, and what it is."""

    name: str
    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True)
class CheckpointFiles:
    """The safetensors files of one directory, their headers read and no weight yet."""

    directory: Path
    tensors: Mapping[str, StoredTensor]
    """By the name that the file gives it, in the order of the files."""
    index: Mapping[str, Any] | None
    """Content of the index file; None for a checkpoint of a single file."""
    metadata: Mapping[str, Mapping[str, str] | None]
    """What each file says of itself, by file name (``{"format": "pt"}`` as transformers writes it)."""

    @classmethod
    def open(cls, directory: str | Path) -> CheckpointFiles:
        """Read the index and the headers of `directory`.

        Raises:
            CheckpointError: no safetensors there, a file of the index is missing or cut short, or index and
                files disagree about what is in them.
        """
        directory = Path(directory)
        index = _read_index(directory)
        files = [SINGLE_FILE] if index is None else list(dict.fromkeys(index["weight_map"].values()))
        tensors: dict[str, StoredTensor] = {}
        metadata: dict[str, Mapping[str, str] | None] = {}
        for name in files:
            check_inside(name, directory)
            stored, metadata[name] = read_header(directory / name)
            for tensor in stored:
                if tensor.name in tensors:
                    raise CheckpointError(
                        f"{tensor.name} is both in {tensors[tensor.name].file} and in {tensor.file}; "
                        "fetch index and files of one save"
                    )
                tensors[tensor.name] = tensor
        if index is not None:
            _check_index(directory, index["weight_map"], tensors)
        return cls(directory, tensors, index, metadata)

    def dtype(self, expected_names: list[str] | None = None) -> torch.dtype:
        """Return the one floating dtype of the tensors (or of those named).

        Raises:
            CheckpointError: they have several.
        """
        by_dtype: dict[torch.dtype, str] = {}
        for name in self.tensors if expected_names is None else expected_names:
            if self.tensors[name].dtype.is_floating_point:
                by_dtype.setdefault(self.tensors[name].dtype, name)
        if len(by_dtype) > 1:
            mixed = ", ".join(f"{name} is {_short(dtype)}" for dtype, name in by_dtype.items())
            raise CheckpointError(
                f"{self.directory} mixes dtypes ({mixed}): loading it as one would change some weights; "
                "pass dtype=, for example dtype=torch.float32, to convert all of them"
            )
        return next(iter(by_dtype), torch.get_default_dtype())

    def read(self, name: str, target: torch.Tensor, dim: int = 0, start: int = 0) -> None:
        """Fill `target` with the slice of a tensor that begins at `start` along `dim`, as long as `target`.

        Values are converted to `target`'s dtype and device. At most `WINDOW_BYTES` of the file are resident
        at once, besides single rows (slices of one index of dim 0) that are larger.

        Raises:
            CheckpointError: the slice is not within the tensor.
        """
        stored = self.tensors[name]
        expected = list(stored.shape)
        if stored.shape:
            expected[dim] = target.shape[dim] if target.dim() == len(expected) else -1
        if list(target.shape) != expected or (expected and start + expected[dim] > stored.shape[dim]):
            raise CheckpointError(
                f"{name} in {stored.file} has shape {list(stored.shape)}, of which {list(target.shape)} from "
                f"{start} along dim {dim} cannot be cut; is config.json of the same model?"
            )
        if not stored.shape:
            with open_safetensors(stored.file) as file:
                target.copy_(file.get_tensor(name))
            return
        row_bytes = max(1, stored.nbytes // max(1, stored.shape[0]))
        rows = max(1, WINDOW_BYTES // row_bytes)
        for first in range(0, target.shape[0], rows):
            block = target[first : first + rows]
            offsets = [0] * target.dim()
            offsets[dim] = start
            offsets[0] += first
            window = tuple(slice(o, o + n) for o, n in zip(offsets, block.shape, strict=True))
            with open_safetensors(stored.file) as file, torch.no_grad():
                block.copy_(file.get_slice(name)[window])


def check_inside(name: str, source: Path) -> None:
    """Refuse a name, of a file or a tensor, that as a path leads out of the directory it is for.

    Args:
        name: as a checkpoint has it.
        source: the checkpoint, for the message.

    Raises:
        CheckpointError: it does.
    """
    path = Path(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise CheckpointError(
            f"{source} names {name!r}, which as a path leads out of it; get it from elsewhere"
        )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def open_safetensors(file: Path) -> Any:
    """Open a safetensors file for reading.

    Raises:
        CheckpointError: it is no whole one.
    """
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        size = file.stat().st_size if file.exists() else 0
        raise CheckpointError(
            f"{file} ({size} bytes) is no whole safetensors file: {error}; it was cut short or is still "
            "being written, fetch or save it again"
        ) from error


def read_header(file: Path) -> tuple[list[StoredTensor], Mapping[str, str] | None]:
    """Return the tensors of a file and its metadata; safetensors checks that the data is all there."""
    if not file.is_file():
        raise CheckpointError(
            f"{file.parent} has no {file.name}, which its {INDEX_FILE} lists; fetch the missing file"
        )
    stored = []
    with open_safetensors(file) as handle:
        for name in handle.offset_keys():
            view = handle.get_slice(name)
            code = view.get_dtype()
            if code not in DTYPES:
                raise CheckpointError(
                    f"{name} in {file} has dtype {code}; a sharded model takes {', '.join(DTYPES)}: "
                    "convert the checkpoint first (quantised weights cannot be cut)"
                )
            stored.append(StoredTensor(name, file, DTYPES[code], tuple(view.get_shape())))
        return stored, handle.metadata()


def _read_index(directory: Path) -> dict[str, Any] | None:
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is no directory; give the folder that save_pretrained wrote")
    if (directory / INDEX_FILE).is_file():
        try:
            index = json.loads((directory / INDEX_FILE).read_text(encoding="utf-8"))
            weight_map = dict(index["weight_map"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{directory / INDEX_FILE} is no index of safetensors files ({type(error).__name__}: "
                f"{error}); fetch or save it again"
            ) from error
        return {**index, "weight_map": weight_map}
    if (directory / SINGLE_FILE).is_file():
        return None
    others = sorted(path.name for path in directory.glob("*.bin"))
    found = f"only {', '.join(others)}" if others else "no weights"
    raise CheckpointError(
        f"{directory} holds {found}, and neither {SINGLE_FILE} nor {INDEX_FILE}; "
        "save the model with save_pretrained, which writes safetensors"
    )


def _check_index(directory: Path, weight_map: Mapping[str, str], tensors: Mapping[str, StoredTensor]) -> None:
    """Index and files must name the same tensors in the same files."""
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].file.name != file:
            where = f"it is in {tensors[name].file.name}" if name in tensors else "no file has it"
            raise CheckpointError(
                f"{directory / INDEX_FILE} says that {name} is in {file}, but {where}; "
                "fetch index and files of one save"
            )
    extra = [name for name in tensors if name not in weight_map]
    if extra:
        raise CheckpointError(
            f"{tensors[extra[0]].file} holds {extra[0]}, which {INDEX_FILE} does not list; "
            "fetch index and files of one save"
        )
