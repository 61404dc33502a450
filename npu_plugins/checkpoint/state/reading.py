"""Slices of the files of a portable state, and of the model's safetensors beside it."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import DTYPES, CheckpointFiles, StoredTensor, open_safetensors, read_header
from npu_plugins.checkpoint.state.assembling import assemble, held_shape
from npu_plugins.checkpoint.state.index import INDEX_FILE, MASTER, STATE_FOLDER, StateIndex
from npu_plugins.pipeline.checkpoints.division import Division

_WINDOW_BYTES = 64 << 20
"""A file is opened again after so many bytes: what was read of one stays resident until it is closed."""


class OpenFile:
    """Keeps the file open that was read last."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._handle: Any = None
        self._read = 0

    def rows(self, path: Path, name: str, start: int, stop: int) -> torch.Tensor:
        """Return a tensor's rows, mapped into memory; of a single number, that."""
        if path != self._path or self._read > _WINDOW_BYTES:
            self._handle, self._path, self._read = open_safetensors(path), path, 0
        view = self._handle.get_slice(name)
        if not view.get_shape():
            return self._handle.get_tensor(name).reshape(1)
        found: torch.Tensor = view[start:stop]
        self._read += found.nbytes
        return found


class StateReader:
    """A checkpoint with a portable state: its index, and the tensors of trained parameters."""

    def __init__(self, checkpoint: str | Path) -> None:
        """Read the index and the headers of the model's files; no tensor yet.

        Raises:
            CheckpointError: a file is missing, cut short or not what the index says.
        """
        self.checkpoint = Path(checkpoint)
        self.folder = self.checkpoint / STATE_FOLDER
        self.index = StateIndex.read(self.folder)
        self.model = model_files(self.checkpoint)
        self._open = OpenFile()
        self._checked: set[str] = set()

    def keys(self, name: str) -> list[str]:
        """Return the optimizer's tensors of a parameter that have a number for each element."""
        return [key for key in self.index.parameters[name].tensors if key != MASTER]

    def piece(self, name: str, key: str, wanted: Division, start: int, length: int) -> torch.Tensor:
        """Return a flat piece of one of a parameter's tensors, as a rank of any layout holds it.

        Args:
            name: of the parameter in the Hugging Face model.
            key: ``fp32``, or one of the optimizer's.
            wanted: how that rank holds the parameter.
            start: where the piece begins in its part, flattened.
            length: its elements.
        """
        state = self.index.parameters.get(name)
        if state is not None and key in state.tensors:
            return assemble(FragmentRows(self, name, key), wanted, start, length)
        return assemble(WeightRows(self, name), wanted, start, length)

    def whole(self, name: str, key: str) -> torch.Tensor:
        """Return a whole tensor as the Hugging Face model has it; also one of ``others``."""
        state = self.index.parameters[name]
        if key in state.others:
            dtype, shape = state.others[key]
            file = state.fragments[0].file
            count = shape[0] if shape else 1
            return self._open.rows(self.folder / file, f"{name}/{key}", 0, count).reshape(shape)
        length = math.prod(state.shape)
        return self.piece(name, key, Division(), 0, length).reshape(state.shape)

    def weight(self, name: str) -> StoredTensor | None:
        """Return where the model's own files have a tensor, if they do."""
        return None if self.model is None else self.model.tensors.get(name)

    def has_value(self, name: str) -> bool:
        """Whether a tensor of the model can be read here."""
        state = self.index.parameters.get(name)
        return (state is not None and MASTER in state.tensors) or self.weight(name) is not None

    def check(self, name: str) -> None:
        """Compare the files that hold a parameter's pieces with the index.

        Raises:
            CheckpointError: a file is missing, cut short or of another save, or a piece is missing.
        """
        state = self.index.parameters[name]
        for file in dict.fromkeys(each.file for each in state.fragments):
            self._check_file(file)
        shard = state.division.shard
        for rank in range(1 if shard is None else shard.size):
            held = 0
            for fragment in sorted(each for each in state.fragments if each.tp_rank == rank):
                if fragment.start != held:
                    break
                held += fragment.length
            wanted = math.prod(state.division.local_shape(state.shape))
            if held != wanted:
                raise CheckpointError(
                    f"{self.folder / INDEX_FILE} has {held} of {wanted} elements of {name} on tensor-"
                    f"parallel rank {rank}; the state was not saved to its end, give another checkpoint"
                )

    def _check_file(self, file: str) -> None:
        if file in self._checked:
            return
        path = self.folder / file
        if not path.is_file():
            raise CheckpointError(
                f"{path} is missing; the checkpoint was not copied whole: copy the file, or give another "
                "checkpoint"
            )
        stored = {each.name: each for each in read_header(path)[0]}
        for name, (code, shape) in self._files[file].items():
            found = stored.get(name)
            if found is None or found.dtype != DTYPES.get(code) or found.shape != shape:
                what = "nothing" if found is None else f"{found.dtype} of shape {list(found.shape)}"
                raise CheckpointError(
                    f"{path} has {what} as {name}, but {INDEX_FILE} says {code} of shape {list(shape)}; the "
                    "files are of two saves, give another checkpoint"
                )
        self._checked.add(file)

    @cached_property
    def _files(self) -> dict[str, dict[str, tuple[str, tuple[int, ...]]]]:
        return self.index.files()


def model_files(checkpoint: Path) -> CheckpointFiles | None:
    """Return the model's safetensors in a checkpoint's directory; None if there are none, as with adapters.

    Raises:
        CheckpointError: they are damaged, or not all there.
    """
    names = ("model.safetensors", "model.safetensors.index.json")
    if not any((checkpoint / name).is_file() for name in names):
        return None
    return CheckpointFiles.open(checkpoint)


class FragmentRows:
    """Rows of a tensor that ranks have saved in flat pieces."""

    def __init__(self, reader: StateReader, name: str, key: str) -> None:
        """Take one of the tensors of a parameter."""
        self.reader, self.name, self.key = reader, name, key
        self.state = reader.index.parameters[name]
        self.shape, self.division = self.state.shape, self.state.division

    def rows(self, rank: int, start: int, stop: int) -> torch.Tensor:
        """Return rows of a rank's part, put together from the pieces that have some of them."""
        local = held_shape(self.division.local_shape(self.shape))
        row = math.prod(local[1:])
        first, last = start * row, stop * row
        found = []
        for fragment in sorted(each for each in self.state.fragments if each.tp_rank == rank):
            low, high = max(first, fragment.start), min(last, fragment.start + fragment.length)
            if low < high:
                path, tensor = self.reader.folder / fragment.file, f"{self.name}/{self.key}"
                begin = low - fragment.start
                found.append(self.reader._open.rows(path, tensor, begin, begin + high - low))
        flat = found[0] if len(found) == 1 else torch.cat(found)
        return flat.reshape(stop - start, *local[1:])


class WeightRows:
    """Rows of a weight in the model's own files, where nothing is divided."""

    division = Division()

    def __init__(self, reader: StateReader, name: str) -> None:
        """Take a tensor of the model's.

        Raises:
            CheckpointError: there is none of that name.
        """
        stored = reader.weight(name)
        if stored is None:
            raise CheckpointError(
                f"{reader.checkpoint} has no weight {name}, neither in the model's files nor in "
                f"{STATE_FOLDER}; the checkpoint is not whole, give another one"
            )
        self._stored, self._open = stored, reader._open
        self.shape = stored.shape

    def rows(self, rank: int, start: int, stop: int) -> torch.Tensor:
        """Return rows; all ranks' are the same."""
        return self._open.rows(self._stored.file, self._stored.name, start, stop)
