"""Files of torch.save, read without running anything that is in them.

A pickle may name any function and have it called. torch's restricted unpickler (``weights_only=True``) makes
tensors and plain values only, and of other classes those it is told of. DeepSpeed 0.19.8's own checkpoints
name four more, and its universal ones a fifth; all five hold numbers and do nothing when they are made.
"""

from __future__ import annotations

import importlib
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy
import torch

from npu_plugins.checkpoint.errors import CheckpointError

DEEPSPEED_CLASSES = (
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
    "deepspeed.checkpoint.universal_checkpoint.SubparamShape",
)
"""What may be made besides tensors and plain values: notes of loss scale, stage and places of slices."""

SUFFIXES = (".pt", ".bin", ".pth")

NEVER_READ = ("training_args.bin",)
"""Objects of a program beside the weights, read by nobody here: their checksums alone are looked at."""


def read_torch(path: Path) -> Any:
    """Return what a file of `torch.save` holds; its tensors are on the CPU and read when they are used.

    Raises:
        CheckpointError: it is missing, cut short, or names another class or function, of which nothing was
            run.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; copy the whole checkpoint, or use another one")
    try:
        with torch.serialization.safe_globals(_allowed(path)):
            # Only zip files, which torch.save has written since 1.6, can be mapped.
            mapped = zipfile.is_zipfile(path)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise _refusal(path, str(error)) from error
    except (RuntimeError, EOFError, OSError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} ({path.stat().st_size} bytes) is no whole file of torch.save: {_first_line(error)}; it "
            "was cut short or changed, copy or save it again"
        ) from error


def damage(path: Path) -> str | None:
    """Return what is wrong with a file of `torch.save`, as the end of a sentence about it; None: nothing.

    All of it is read: zip files have a checksum for each tensor.
    """
    try:
        if path.name not in NEVER_READ:
            read_torch(path)
        elif not zipfile.is_zipfile(path):
            return f"({path.stat().st_size} bytes) is no whole file of torch.save"
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                bad = archive.testzip()
            if bad is not None:
                return f"is damaged: the checksum of its part {bad} differs"
    except (CheckpointError, zipfile.BadZipFile, OSError) as error:
        return str(error).removeprefix(f"{path} ")
    return None


def _allowed(path: Path) -> list[Any]:
    """The classes that a file names, of those it may name; no other of them is imported."""
    found = _numpy_arrays() if path.name.startswith("rng_state") else []
    named = _pickled(path)
    for name in DEEPSPEED_CLASSES:
        module, _, own = name.rpartition(".")
        if named is None or own.encode() in named:
            found.append(getattr(importlib.import_module(module), own))
    return found


def _numpy_arrays() -> list[Any]:
    """What transformers' Trainer keeps numpy's generator in; it allows the same (`trainer_utils`)."""
    core = numpy._core if hasattr(numpy, "_core") else numpy.core
    return [core.multiarray._reconstruct, numpy.ndarray, numpy.dtype, type(numpy.dtype(numpy.uint32))]


def _pickled(path: Path) -> bytes | None:
    """The pickles in a zip file, without the tensors' bytes; None for a file of the form before."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        return b"".join(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))


def _refusal(path: Path, text: str) -> CheckpointError:
    named = re.search(r"GLOBAL ([\w.]+)", text)
    what = f"it asks for {named.group(1)}" if named else _first_line(text)
    return CheckpointError(
        f"{path} holds more than tensors and plain values: {what}, and nothing of it was run; get the "
        "weights as safetensors, or, if you know who made the file and trust it, name that with "
        "torch.serialization.add_safe_globals or save its tensors again with torch.save"
    )


def _first_line(error: Any) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
