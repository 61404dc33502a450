"""What a checkpoint is, how it is laid out and how large, read from headers and small files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from npu_plugins.checkpoint.kinds import (
    ADAPTER_CONFIG,
    LAYER_FILE,
    OPTIMIZER_FILE,
    Found,
    Kind,
    content_of,
    recognise,
)
from npu_plugins.checkpoint.manifest import Manifest
from npu_plugins.checkpoint.sharded import ShardedSource
from npu_plugins.checkpoint.sources import HuggingFaceSource
from npu_plugins.checkpoint.streaming import TensorInfo
from npu_plugins.checkpoint.torch_files import read_torch


@dataclass
class Description:
    """What `npu-plugins checkpoint inspect` tells."""

    path: str
    kind: str
    files: int
    """How many there are, in all folders."""
    bytes: int
    """Their sizes together."""
    tensors: int = 0
    parameters: int = 0
    """Numbers in the weights."""
    dtypes: dict[str, int] = field(default_factory=dict)
    """How many numbers have which."""
    layout: dict[str, Any] = field(default_factory=dict)
    """Degrees, ZeRO stage and world size, as far as the files tell."""
    step: int | None = None
    model: str | None = None
    """The architecture that config.json names."""
    optimizer: list[str] = field(default_factory=list)
    """Names of the optimizer's tensors of a parameter; [] where no state is kept by name."""
    resumes: str = "nothing: it holds weights alone"
    """What a job can go on from it as."""
    details: dict[str, Any] = field(default_factory=dict)
    """What only this kind has."""

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        """Return it as lines for people."""
        lines = [f"{self.path}: {self.kind}"]
        lines.append(f"files:      {self.files}, {format_bytes(self.bytes)}")
        if self.model:
            lines.append(f"model:      {self.model}")
        if self.step is not None:
            lines.append(f"step:       {self.step}")
        if self.layout:
            lines.append(f"layout:     {', '.join(f'{key} {value}' for key, value in self.layout.items())}")
        dtypes = ", ".join(f"{count:,} {name}" for name, count in self.dtypes.items())
        lines.append(f"parameters: {self.parameters:,} in {self.tensors} tensors ({dtypes or 'none'})")
        lines.append(f"optimizer:  {', '.join(self.optimizer) if self.optimizer else 'no state by name'}")
        lines.append(f"resumes as: {self.resumes}")
        lines += [f"{key}: {value}" for key, value in self.details.items()]
        return "\n".join(lines)


def describe(directory: str | Path) -> Description:
    """Return what a checkpoint is; no weight is read.

    Raises:
        CheckpointError: it is none that is known here, or its headers or small files are damaged.
    """
    found = recognise(directory)
    sizes = [path.stat().st_size for path in found.path.rglob("*") if path.is_file()]
    told = Description(str(found.path), found.kind.value, len(sizes), sum(sizes))
    held: Found | None = found
    if found.kind is Kind.OURS:
        manifest = Manifest.read(found.path)
        told.details = {"model digest": manifest.model, **manifest.extra}
        held = content_of(found)
        if held is not None:
            told.kind = f"{found.kind.value} with {held.kind.value}"
    if held is not None:
        tellers: dict[Kind, Callable[[Description, Path], None]] = {
            Kind.HUGGING_FACE: _hugging_face,
            Kind.SHARDED: _sharded,
            Kind.UNIVERSAL: _universal,
            Kind.ZERO: _zero,
            Kind.PIPELINE: _pipeline,
            Kind.TRAINING: _training,
        }
        tellers[held.kind](told, held.path)
    if found.kind is Kind.OURS:
        told.step = manifest.step
        parallel = manifest.layout.parallel
        told.layout = {axis: getattr(parallel, axis) for axis in ("tp", "pp", "dp", "ep")}
        told.layout |= {"world size": parallel.world_size, "ZeRO stage": manifest.layout.zero_stage}
    own = (held or found).path
    told.model = _adapted(own) or _architecture(own, Path(directory))
    return told


def format_bytes(count: int) -> str:
    """Return a size with a unit, such as ``1.5 GiB``."""
    size, unit = float(count), 0
    while size >= 1024 and unit < 4:
        size, unit = size / 1024, unit + 1
    names = ("B", "KiB", "MiB", "GiB", "TiB")
    return f"{count} B" if unit == 0 else f"{size:.1f} {names[unit]}"


def _hugging_face(told: Description, directory: Path) -> None:
    _count(told, HuggingFaceSource(directory).tensors)
    beside = [path.name for path in directory.iterdir() if path.name.startswith("global_step")]
    if beside:
        told.details["DeepSpeed checkpoint beside it"] = ", ".join(sorted(beside))
        told.resumes = "the ranks and ZeRO stage of its run, by the Trainer"
    elif (directory / "optimizer.pt").is_file():
        told.resumes = "one process or data parallelism without DeepSpeed, by the Trainer"
    told.step = _trainer_step(directory)


def _sharded(told: Description, directory: Path) -> None:
    source = ShardedSource(directory)
    _count(told, source.tensors)
    told.layout = {"tp": source.tp, "pp": source.pp}


def _universal(told: Description, directory: Path) -> None:
    from npu_plugins.checkpoint.universal import UniversalSource  # imports DeepSpeed, which others do without

    source = UniversalSource(directory)
    _count(told, source.tensors)
    told.step = source.counters.get("global_steps")
    keys = {key for name in source.tensors for key in source.moments(name)}
    told.optimizer = sorted(keys)
    told.layout = {"layout": "any"}
    told.resumes = 'any layout, with "checkpoint": {"load_universal": true}'


def _zero(told: Description, directory: Path) -> None:
    from npu_plugins.checkpoint.zero import ZeroSource

    source = ZeroSource(directory)
    _count(told, source.tensors)
    told.layout = {"tp": 1, "pp": 1, "dp": source.world, "ZeRO stage": source.zero_stage}
    told.step = source.counters.get("global_steps")
    told.optimizer = sorted({key for name in source.tensors for key in source.moments_of(name)})
    told.resumes = (
        f"{source.world} ranks with ZeRO stage {source.zero_stage}; convert to universal for others"
    )
    told.details |= {"DeepSpeed version": source.version}


def _training(told: Description, directory: Path) -> None:
    from npu_plugins.checkpoint.training import TrainingSource

    source = TrainingSource(directory)
    _count(told, source.tensors)
    written = source.index.layout
    told.layout = {axis: getattr(written.parallel, axis) for axis in ("tp", "pp", "dp", "ep")}
    told.layout["ZeRO stage"] = written.zero_stage
    step = _trainer_step(directory)
    told.step = source.counters.get("global_steps") if step is None else step
    told.optimizer = sorted({key for name in source.tensors for key in source.moments_of(name)})
    told.resumes = "its layout, to the bit; any other tp × pp × dp and ZeRO stage with --allow_layout_change"
    told.details["optimizer's class"] = source.index.optimizer


def _pipeline(told: Description, directory: Path) -> None:
    states = read_torch(directory / "mp_rank_00_model_states.pt")
    dimensions = states.get("checkpoint_parallel_dimensions") or {}
    names = [path.name for path in directory.iterdir()]
    layers = {match.group(0): match for name in names if (match := LAYER_FILE.fullmatch(name))}
    ranks = {match.group(2) for match in layers.values()}
    tp = int(dimensions.get("tp_degree", len(ranks)))
    told.layout = {"tp": tp, "pp": int(states["mp_world_size"]) // tp, "dp": int(states["dp_world_size"])}
    told.step = states.get("global_steps")
    optimizers = [name for name in names if OPTIMIZER_FILE.fullmatch(name)]
    told.details |= {
        "layers": len({match.group(1) for match in layers.values()}),
        "optimizer files": len(optimizers),
        "DeepSpeed version": states.get("ds_version"),
    }
    if "modules" in (states.get("npu_plugins_pipeline") or {}):
        _described_pipeline(told, directory)
        return
    told.resumes = "its layout, and others where ZeRO names the parameters, by the pipeline engine"
    infos: dict[str, TensorInfo] = {}
    for name in layers:
        held = read_torch(directory / name)
        infos |= {
            f"{name}: {key}": TensorInfo(value.dtype, tuple(value.shape))
            for key, value in held.items()
            if isinstance(value, torch.Tensor)
        }
    _count(told, infos)


def _described_pipeline(told: Description, directory: Path) -> None:
    from npu_plugins.checkpoint.pipelines import PipelineSource

    source = PipelineSource(directory)
    _count(told, source.tensors)
    told.optimizer = sorted({key for name in source.tensors for key in source.moments_of(name)})
    told.resumes = "any stages, replicas, tensor-parallel ranks and ZeRO stage 0 or 1, by the pipeline engine"
    told.details["names"] = "Hugging Face's" if source.of_hugging_face else "the pipeline's own"


def _count(told: Description, tensors: Mapping[str, TensorInfo]) -> None:
    dtypes: Counter[str] = Counter()
    for info in tensors.values():
        dtypes[str(info.dtype).removeprefix("torch.")] += info.numel
    told.tensors, told.parameters, told.dtypes = len(tensors), sum(dtypes.values()), dict(dtypes)


def _trainer_step(directory: Path) -> int | None:
    """The optimizer steps that the Trainer has noted beside a model."""
    try:
        return int(json.loads((directory / "trainer_state.json").read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _architecture(*directories: Path) -> str | None:
    for directory in (*directories, directories[0].parent):
        try:
            content = json.loads((directory / "config.json").read_text(encoding="utf-8"))
            names = content.get("architectures") or [content.get("model_type")]
            return str(names[0])
        except (OSError, ValueError, AttributeError, IndexError):
            continue
    return None


def _adapted(directory: Path) -> str | None:
    """What the adapters of peft in a directory are for."""
    try:
        base = json.loads((directory / ADAPTER_CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return f"adapters of peft for {base or 'a model that they do not name'}"
