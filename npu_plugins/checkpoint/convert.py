"""From one kind of checkpoint to another, one tensor at a time."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from npu_plugins.checkpoint.aside import TEMPORARY
from npu_plugins.checkpoint.atomic import find_faults
from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.hugging_face import CONFIG, copy_small_files, set_dtype, write_hugging_face
from npu_plugins.checkpoint.kinds import ADAPTER_CONFIG, Found, Kind, content_of, recognise
from npu_plugins.checkpoint.places import converted, places_of
from npu_plugins.checkpoint.sharded import ShardedSource, write_sharded
from npu_plugins.checkpoint.sources import HuggingFaceSource, Source

TARGETS = {
    "hf": Kind.HUGGING_FACE,
    "sharded": Kind.SHARDED,
    "universal": Kind.UNIVERSAL,
    "training": Kind.TRAINING,
}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
UNIVERSAL_TAG = "universal"
MAX_FILE_BYTES = 5 * 10**9
_PIPELINE_NAME = re.compile(r"(\d+|tied_modules)\.")


class Converted(NamedTuple):
    """What a conversion made."""

    source: Found
    path: Path
    parameters: int
    notes: list[str]
    """What was left out or made up, in sentences."""


def convert(
    source: str | Path,
    destination: str | Path,
    to: str,
    *,
    tp: int = 1,
    pp: int = 1,
    dtype: str | None = None,
    config: str | Path | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Converted:
    """Convert a checkpoint; every bit of a weight is kept where no other dtype is asked for.

    Memory holds a tensor at a time (and, for an optimizer's moments, those of one parameter). The result is
    written aside and renamed when it is whole.

    Args:
        source: a directory of `save_pretrained`, one that this function made, a checkpoint of the Trainer, of
            the pipeline engine, or of DeepSpeed (ZeRO stage 0 to 3, or universal). One with a manifest is
            verified first.
        destination: must not exist, or be empty.
        to: ``hf``, ``sharded``, ``universal``, or ``training``: what the Trainer goes on from at any layout.
        tp: for ``sharded``: tensor-parallel ranks.
        pp: for ``sharded``: pipeline stages.
        dtype: float32, float16 or bfloat16, for ``hf`` and ``sharded``; None: weights stay as they are. From
            a checkpoint of training they are the optimizer's fp32 master weights, if it has some.
        config: directory with config.json and tokenizer, where none is beside the source.
        max_file_bytes: where a file of ``hf`` ends.

    Raises:
        CheckpointError: the source is damaged, or cannot become that; nothing is left at `destination`.
    """
    destination = Path(destination)
    _check_asked(to, tp, pp, dtype)
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise CheckpointError(f"{destination} is there already; give a directory that is new or empty")
    found, weights = open_source(source)
    kind = TARGETS[to]
    if found.kind is kind and kind is not Kind.SHARDED and dtype is None:
        raise CheckpointError(f"{found.path} is {kind.value} already; copy it, or ask for another dtype")
    if kind is not Kind.UNIVERSAL:
        _check_model(weights)
    origin = _config_directory(Path(source), found, config)
    if origin is None and kind is not Kind.UNIVERSAL:
        raise CheckpointError(
            f"neither {source} nor its folder has a {CONFIG}, which says what model the weights are of; pass "
            "--config with a directory that has it"
        )
    job = _Job(found, kind, weights, origin, tp, pp, DTYPES[dtype] if dtype else None, max_file_bytes)
    notes = job.write_aside(destination)
    if kind in (Kind.HUGGING_FACE, Kind.SHARDED) and found.kind not in (Kind.HUGGING_FACE, Kind.SHARDED):
        notes.append("only weights are converted: the optimizer's state stays behind")
    numbers = sum(info.numel for info in weights.tensors.values())
    return Converted(found, destination, numbers, notes)


@dataclass(frozen=True)
class _Job:
    """One conversion, everything that can be refused beforehand being fine."""

    found: Found
    kind: Kind
    weights: Source
    origin: Path | None
    """Directory with config.json and other small files."""
    tp: int
    pp: int
    dtype: torch.dtype | None
    max_file_bytes: int

    def write_aside(self, destination: Path) -> list[str]:
        """Write under another name, then rename; returns what the reader should know."""
        staging = destination.with_name(TEMPORARY + destination.name)
        try:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
            notes = self._write(staging)
            if destination.exists():
                destination.rmdir()
            staging.rename(destination)
        except OSError as error:
            raise CheckpointError(
                f"{destination} cannot be written: {error}; make room or mend that"
            ) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return notes

    def _write(self, folder: Path) -> list[str]:
        if self.origin is not None:
            of_weights = self.found.kind in (Kind.HUGGING_FACE, Kind.SHARDED)
            copy_small_files(self.origin, folder, below=of_weights and self.origin == self.found.path)
        if self.kind is Kind.UNIVERSAL:
            from npu_plugins.checkpoint.universal import write_universal

            (folder / UNIVERSAL_TAG).mkdir()
            notes = write_universal(self.weights, folder / UNIVERSAL_TAG)
            (folder / "latest_universal").write_text(UNIVERSAL_TAG, encoding="utf-8")
            return notes
        if self.kind is Kind.TRAINING:
            from npu_plugins.checkpoint.write_training import write_training

            assert self.origin is not None, "checked before"
            set_dtype(folder, self.weights.tensors)
            return write_training(self.weights, folder, self.origin, self.max_file_bytes)
        infos = {name: converted(info, self.dtype) for name, info in self.weights.tensors.items()}
        if self.kind is Kind.SHARDED:
            assert self.origin is not None, "checked before"
            places = places_of(self.weights, self.origin, self.tp, self.pp, self.dtype)
            write_sharded(self.weights, folder, places, self.tp, self.pp)
        else:
            same, limit = self.dtype is None, self.max_file_bytes
            write_hugging_face(self.weights, folder, infos, same_files=same, max_file_bytes=limit)
        set_dtype(folder, infos)
        return []


def open_source(directory: str | Path) -> tuple[Found, Source]:
    """Recognise a checkpoint and open it.

    Raises:
        CheckpointError: it is none that can be read here, or damaged.
    """
    found = recognise(directory)
    if found.kind is Kind.OURS:
        faults = find_faults(found.path)
        if faults:
            raise CheckpointError(f"{found.path} is damaged: {faults[0]}; use an earlier checkpoint")
        held = content_of(found)
        if held is None:
            raise CheckpointError(f"{found.path} holds no weights in a form that is known here")
        found = held
    return found, _opened(found)


def _opened(found: Found) -> Source:
    if found.kind is Kind.HUGGING_FACE:
        return HuggingFaceSource(found.path)
    if found.kind is Kind.SHARDED:
        return ShardedSource(found.path)
    # These import DeepSpeed, which the others do without.
    from npu_plugins.checkpoint.pipelines import PipelineSource
    from npu_plugins.checkpoint.training import TrainingSource
    from npu_plugins.checkpoint.universal import UniversalSource
    from npu_plugins.checkpoint.zero import ZeroSource

    kinds: dict[Kind, Callable[[Path], Source]] = {
        Kind.PIPELINE: PipelineSource,
        Kind.TRAINING: TrainingSource,
        Kind.UNIVERSAL: UniversalSource,
        Kind.ZERO: ZeroSource,
    }
    return kinds[found.kind](found.path)


def _check_asked(to: str, tp: int, pp: int, dtype: str | None) -> None:
    if to not in TARGETS:
        raise CheckpointError(f"cannot convert to {to!r}; choose {', '.join(TARGETS)}")
    if tp < 1 or pp < 1:
        raise CheckpointError(f"tp {tp} × pp {pp} is no layout; give whole numbers, 1 or more")
    if to != "sharded" and (tp, pp) != (1, 1):
        raise CheckpointError(f"tp {tp} × pp {pp} is for sharded; {to} holds whole tensors: leave both out")
    if dtype is not None and dtype not in DTYPES:
        raise CheckpointError(f"dtype {dtype!r} is unknown; choose {', '.join(DTYPES)}")
    if dtype is not None and to in ("universal", "training"):
        raise CheckpointError(f"{to} checkpoints hold fp32 weights; leave --dtype out")


def _check_model(source: Source) -> None:
    """Refuse what is no whole Hugging Face model."""
    if (source.directory / ADAPTER_CONFIG).is_file():
        raise CheckpointError(
            f"{source.directory} holds adapters of peft, not the weights of a model; train with "
            "--lora_merge, or load them with peft and call merge_and_unload"
        )
    for name in source.tensors:
        if _PIPELINE_NAME.match(name):
            raise CheckpointError(
                f"{source.directory} is of a pipeline of own layers: {name} is no parameter of a Hugging "
                "Face model; convert it to universal"
            )


def _config_directory(given: Path, found: Found, config: str | Path | None) -> Path | None:
    if config is not None:
        if not (Path(config) / CONFIG).is_file():
            raise CheckpointError(f"{config} has no {CONFIG}; give a directory that save_pretrained wrote")
        return Path(config)
    candidates = (found.path, given, found.path.parent)
    return next((path for path in candidates if (path / CONFIG).is_file()), None)
