"""Writing safetensors one tensor after another.

The library's own `save_file` wants all tensors of a file at once, which for the usual files of 5 GB is more
than a conversion should hold. The format is eight bytes with the length of a JSON header, the header, and the
tensors' bytes (https://github.com/huggingface/safetensors, "Format"); the order is the library's, so that the
files are the same to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import torch

from npu_plugins.checkpoint.files import DTYPES

# The library sorts by width, widest first, and among equal widths in the reverse order of its own list.
_ORDER = ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL")
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_ALIGNMENT = 8


class TensorInfo(NamedTuple):
    """What a tensor is, without its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """How many numbers it has."""
        return torch.Size(self.shape).numel()

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.dtype.itemsize * self.numel


class SafetensorsWriter:
    """A safetensors file in the making, whose tensors come in any order.

    Args:
        path: of the file.
        tensors: all that is to be in it, by name.
        metadata: goes to the header.
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str] | None = None
    ) -> None:
        self._tensors, self._missing = tensors, set(tensors)
        self._offsets: dict[str, int] = {}
        order = sorted(tensors, key=lambda name: (_ORDER.index(_CODES[tensors[name].dtype]), name))
        header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
        offset = 0
        for name in order:
            self._offsets[name] = offset
            end = offset + tensors[name].nbytes
            header[name] = {
                "dtype": _CODES[tensors[name].dtype],
                "shape": list(tensors[name].shape),
                "data_offsets": [offset, end],
            }
            offset = end
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        self._start = 8 + len(text)
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write one of the tensors.

        Raises:
            ValueError: it has another dtype or shape than was said.
        """
        tensor = tensor.detach().cpu().contiguous()
        found = TensorInfo(tensor.dtype, tuple(tensor.shape))
        if found != self._tensors[name]:
            raise ValueError(f"{name} is {found}, not {self._tensors[name]}")
        self._file.seek(self._start + self._offsets[name])
        self._file.write(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
        self._missing.discard(name)

    def __enter__(self) -> SafetensorsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file.

        Raises:
            ValueError: a tensor was not written.
        """
        self._file.close()
        if error is None and self._missing:
            raise ValueError(f"{min(self._missing)} and {len(self._missing) - 1} more were not written")
