"""The manifest of a checkpoint: every file with its size and checksum, and what the whole is a state of.

Checksums are XXH3 of 128 bits. They guard against accidents (a disk that fills, a copy that stops, a bit that
flips); against malice none of them would, since whoever can change a file can change the manifest beside it.
So a cryptographic hash buys nothing, and costs the time of writing once more: on the machine this was written
on, XXH3 reads 17 GiB/s, SHA-256 1.7 and hashlib's BLAKE2b 0.35, where a good disk writes 1 to 3. What keeps
hostile files from doing harm is that nothing is unpickled (`npu_plugins.checkpoint.torch_files`).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from ds_configs.errors import DsConfigError
from ds_configs.parallel import ParallelConfig
from npu_plugins.checkpoint.errors import CheckpointError

MANIFEST_FILE = "npu_plugins_manifest.json"
VERSION = 1
HASH = "xxh3_128"
_BLOCK_BYTES = 4 << 20


class FileRecord(NamedTuple):
    """What the manifest says of one file."""

    size: int
    """In bytes."""
    checksum: str


class Fault(NamedTuple):
    """One file that is not as it should be."""

    file: str
    """Its name within the checkpoint."""
    problem: str
    """What is wrong, as the end of a sentence that begins with the name."""

    def __str__(self) -> str:
        return f"{self.file} {self.problem}"


@dataclass(frozen=True)
class Layout:
    """How the ranks that wrote a checkpoint were divided."""

    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    zero_stage: int = 0

    def __str__(self) -> str:
        degrees = " × ".join(f"{axis} {getattr(self.parallel, axis)}" for axis in ("tp", "pp", "dp"))
        return f"{degrees} with ZeRO stage {self.zero_stage}"


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint of ours is: the content of its manifest."""

    step: int
    layout: Layout
    model: str
    """Identity of the model, from `model_digest`; checkpoints of other models are refused by it."""
    files: Mapping[str, FileRecord]
    """By name relative to the checkpoint, with ``/``."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Anything else that JSON holds."""

    def write(self, directory: Path) -> None:
        """Write it into a checkpoint, synchronised to the disk."""
        body = {
            "format": "npu_plugins.checkpoint",
            "version": VERSION,
            "step": self.step,
            "layout": {
                **dataclasses.asdict(self.layout.parallel),
                "world_size": self.layout.parallel.world_size,
                "zero_stage": self.layout.zero_stage,
            },
            "model": self.model,
            "hash": HASH,
            "files": {name: list(record) for name, record in sorted(self.files.items())},
            "extra": dict(self.extra),
        }
        body = json.loads(json.dumps(body))  # as it will be read: keys are texts, tuples lists
        text = json.dumps({**body, "own_checksum": _digest(body)}, indent=1) + "\n"
        with (directory / MANIFEST_FILE).open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def read(cls, directory: str | Path) -> Manifest:
        """Read the manifest of a checkpoint.

        Raises:
            CheckpointError: there is none, or it is damaged or of a later version.
        """
        file = Path(directory) / MANIFEST_FILE
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
            own, version = body.pop("own_checksum"), body["version"]
            if version == VERSION and own == _digest(body):
                return cls._of(body)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{directory} has no {MANIFEST_FILE}: it is no checkpoint of npu_plugins, or was never "
                "completed; use an earlier one"
            ) from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError, DsConfigError) as error:
            raise CheckpointError(
                f"{file} cannot be read ({type(error).__name__}: {error}); use an earlier checkpoint"
            ) from error
        if version != VERSION:
            raise CheckpointError(
                f"{file} is of version {version!r}, but this npu_plugins reads {VERSION}; install a later one"
            )
        raise CheckpointError(f"{file} does not have the checksum it names; use an earlier checkpoint")

    @classmethod
    def _of(cls, body: Mapping[str, Any]) -> Manifest:
        degrees = dict(body["layout"])
        degrees.pop("world_size")
        stage = degrees.pop("zero_stage")
        files = {
            name: FileRecord(int(size), str(checksum)) for name, (size, checksum) in body["files"].items()
        }
        for name in files:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"the file {name!r} is outside the checkpoint")
        layout = Layout(ParallelConfig(**degrees), int(stage))
        return cls(int(body["step"]), layout, str(body["model"]), files, dict(body["extra"]))

    def faults(
        self, directory: str | Path, names: Iterable[str] | None = None, *, checksums: bool = True
    ) -> list[Fault]:
        """Return the files (of `names`, or all) that are missing or changed; [] for a good checkpoint.

        Args:
            directory: the checkpoint.
            names: a part of `files`, where several ranks divide the work.
            checksums: whether the files are read, or their sizes looked at only.
        """
        found = []
        for name in self.files if names is None else names:
            problem = _problem(Path(directory, name), self.files[name], checksums)
            if problem:
                found.append(Fault(name, problem))
        return found

    def check_fits(self, model: str, layout: Layout, *, other_layout: bool = False) -> None:
        """Refuse a checkpoint that a job cannot go on from.

        Args:
            model: the job's `model_digest`.
            layout: the job's.
            other_layout: whether the job converts checkpoints of other layouts.

        Raises:
            CheckpointError: it is of another model, or of another layout and that was not asked for.
        """
        if model != self.model:
            raise CheckpointError(
                f"the checkpoint of step {self.step} is of another model (configuration digest {self.model}, "
                f"this one's is {model}); give the directory of this model's run, or its configuration"
            )
        if layout != self.layout and not other_layout:
            raise CheckpointError(
                f"the checkpoint of step {self.step} was written by {self.layout}, but this job is {layout}; "
                "start it with the same degrees, or ask for the checkpoint to be taken to the new layout"
            )


def record(file: Path, *, sync: bool = False) -> FileRecord:
    """Return size and checksum of a file, read in blocks of 4 MiB.

    Args:
        file: any.
        sync: whether it is also made to reach the disk.
    """
    digest, size = xxhash.xxh3_128(), 0
    with file.open("rb", buffering=0) as opened:
        while block := opened.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
        if sync:
            os.fsync(opened.fileno())
    return FileRecord(size, digest.hexdigest())


def model_digest(config: Any) -> str:
    """Return the identity of a model: a digest of `model_content`.

    Args:
        config: a Hugging Face configuration, or any mapping that JSON holds.
    """
    return _digest(model_content(config))


def model_content(config: Any) -> dict[str, Any]:
    """Return what of a configuration makes another model of it.

    What does not change the weights' shapes or meaning is left out: name, versions, dtype, caching, the kind
    of attention kernel, and what is set for training: dropout, and the ids of special tokens.

    Args:
        config: a Hugging Face configuration, or any mapping.
    """
    content = dict(config.to_dict() if hasattr(config, "to_dict") else config)
    for key in _NOT_IDENTITY:
        content.pop(key, None)
    names = [key for key in content if not key.startswith("_") and not key.endswith("_token_id")]
    return {key: content[key] for key in names if "drop" not in key}


_NOT_IDENTITY = (
    "transformers_version",
    "dtype",
    "torch_dtype",
    "use_cache",
    "name_or_path",
    "architectures",
    "problem_type",  # a classifier of transformers sets it by the first labels that it sees
)


def _digest(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, default=str).encode())


def _problem(file: Path, wanted: FileRecord, checksums: bool) -> str | None:
    try:
        size = file.stat().st_size
        if size != wanted.size:
            return f"has {size} bytes, not {wanted.size}: it was cut short or changed"
        if checksums and record(file) != wanted:
            return "has another content than was saved: its checksum differs"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error}"
    return None
