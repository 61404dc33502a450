"""What a directory is: which program's checkpoint, and where in it the files are."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import NamedTuple

from npu_plugins.checkpoint.atomic import steps_in
from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import INDEX_FILE, SINGLE_FILE, check_inside
from npu_plugins.checkpoint.manifest import MANIFEST_FILE

SHARDED_INDEX = "npu_plugins_sharded.json"
TRAINING_INDEX = "training_state/index.json"
ADAPTER_CONFIG = "adapter_config.json"
UNIVERSAL_WEIGHT = "fp32.pt"
UNIVERSAL_COMMON = "optimizer_state.pt"
OPTIMIZER_FILE = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
MODEL_FILE = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
LAYER_FILE = re.compile(r"layer_(\d+)-(?:model_(\d+)-)?model_states\.pt")


class Kind(enum.Enum):
    """The kinds of checkpoints that are known here; the value names one in a sentence."""

    HUGGING_FACE = "Hugging Face safetensors"
    SHARDED = "npu_plugins sharded safetensors"
    ZERO = "DeepSpeed"
    PIPELINE = "DeepSpeed pipeline"
    UNIVERSAL = "DeepSpeed universal"
    TRAINING = "Hugging Face safetensors and training state"
    OURS = "npu_plugins checkpoint"


class Found(NamedTuple):
    """A checkpoint that was recognised."""

    kind: Kind
    path: Path
    """The directory with its files, which may be below the one that was given."""


def recognise(directory: str | Path) -> Found:
    """Return what a directory is.

    DeepSpeed's tag is followed: of a directory with a file ``latest`` or ``latest_universal``, the folder
    that it names is the checkpoint, unless the directory is one itself.

    Raises:
        CheckpointError: it is none that is known here.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is no directory; give the folder of a checkpoint")
    kind = _kind_of(directory)
    if kind is not None:
        return Found(kind, directory)
    for latest in ("latest_universal", "latest"):
        if (directory / latest).is_file():
            tag = (directory / latest).read_text(encoding="utf-8", errors="replace").strip()
            check_inside(tag, directory / latest)
            kind = _kind_of(directory / tag) if (directory / tag).is_dir() else None
            if kind is None:
                raise CheckpointError(
                    f"{directory / latest} names {tag}, but {directory / tag} is no checkpoint; copy the "
                    "whole one"
                )
            return Found(kind, directory / tag)
    steps = list(steps_in(directory).values())
    if steps:
        raise CheckpointError(
            f"{directory} is a run with {len(steps)} checkpoints; give one of them: {steps[0]} is the newest"
        )
    names = sorted(path.name for path in directory.iterdir())[:5]
    raise CheckpointError(
        f"{directory} is no checkpoint: it has neither safetensors nor DeepSpeed's files, but "
        f"{', '.join(names) if names else 'nothing'}; give the folder that holds the weights"
    )


def _kind_of(directory: Path) -> Kind | None:
    names = [path.name for path in directory.iterdir()]
    return Kind.OURS if MANIFEST_FILE in names else _kind_by(directory, names)


def _kind_by(directory: Path, names: list[str]) -> Kind | None:
    if SHARDED_INDEX in names:
        return Kind.SHARDED
    if (directory / TRAINING_INDEX).is_file():
        return Kind.TRAINING
    if SINGLE_FILE in names or INDEX_FILE in names:
        return Kind.HUGGING_FACE
    if "zero" in names and next((directory / "zero").rglob(UNIVERSAL_WEIGHT), None) is not None:
        return Kind.UNIVERSAL
    if any(LAYER_FILE.fullmatch(name) for name in names):
        return Kind.PIPELINE
    if any(MODEL_FILE.fullmatch(name) for name in names):
        return Kind.ZERO
    return None


def content_of(found: Found) -> Found | None:
    """Return the checkpoint of another kind that one of ours holds, itself or in a folder; or None."""
    for folder in (found.path, *sorted(path for path in found.path.iterdir() if path.is_dir())):
        kind = _kind_by(folder, [path.name for path in folder.iterdir()])
        if kind is not None:
            return Found(kind, folder)
    return None
