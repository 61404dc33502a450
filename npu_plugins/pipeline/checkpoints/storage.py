"""Single files of a checkpoint: written whole or not at all, read without running anything that is in them.

DeepSpeed 0.19.8 writes each file in place and reads it with ``torch.load(weights_only=False)``, which runs
whatever a file asks for. Here torch's restricted unpickler reads, which builds tensors, plain values and the
few classes of `_known_classes`; every file is read back in the same way right after it was written, so that
nothing is saved that could not be loaded.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint.universal_checkpoint import SubparamShape
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from npu_plugins.checkpoint.errors import CheckpointError


def _known_classes() -> list[Any]:
    """The classes that DeepSpeed puts into its files; they hold numbers and do nothing when built."""
    return [fragment_address, LossScaler, DynamicLossScaler, SubparamShape, ZeroStageEnum]


def read(path: Path) -> Any:
    """Return what a file holds, its tensors on the CPU and read from the disk when they are used.

    Raises:
        CheckpointError: it is missing, cut short, or holds an object of another class.
    """
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing; the checkpoint was not saved to its end, or not copied whole: copy the "
            "file, or load another checkpoint"
        )
    try:
        with torch.serialization.safe_globals(_known_classes()):
            # Only zip files, which torch.save has written since 1.6, can be mapped.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        if "Unsupported" not in str(error) and "GLOBAL" not in str(error):
            raise _damaged(path, error) from error
        reason = next(line for line in str(error).splitlines() if "nsupported" in line or "GLOBAL" in line)
        raise CheckpointError(
            f"{path} holds more than tensors and plain values, and nothing else is unpickled: "
            f"{reason.strip()}; if you trust it, name the class with torch.serialization.add_safe_globals"
        ) from error
    except (RuntimeError, EOFError, OSError, KeyError, ValueError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    first = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    return CheckpointError(
        f"{path} ({path.stat().st_size} bytes) cannot be read, it was cut short or damaged: {first}; copy it "
        "again, or load another checkpoint"
    )


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Make a file's content survive a loss of power."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Replace a small file in one step: a reader finds the old text or the new one."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_directory(path.parent)


class DurableFiles(TorchCheckpointEngine):
    """DeepSpeed's checkpoint engine, which waits for the disk, reads back what it wrote, unpickles little."""

    def save(self, state_dict: Any, path: str) -> None:
        """Write a file.

        Raises:
            CheckpointError: it holds something that could not be loaded.
        """
        super().save(state_dict, path)
        sync_file(Path(path))
        read(Path(path))

    def load(self, path: str, map_location: Any = None) -> Any:
        """Return what a file holds; tensors are on the CPU whatever `map_location` says."""
        return read(Path(path))
