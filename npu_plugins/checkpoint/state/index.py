"""``training_state/index.json``: what a portable state of training holds, and in which files.

The format, version 1, is a JSON object:

- ``"format": "npu_plugins.training_state"``, ``"version": 1``;
- ``"layout"``: tp, pp, dp, ep and zero_stage of the ranks that wrote it, for information;
- ``"optimizer"``: the name of the optimizer's class;
- ``"counters"``: DeepSpeed's, such as global_steps; {} without DeepSpeed;
- ``"scheduler"``: the state of the learning-rate scheduler, ``"loss_scale"``: of a dynamic loss scale, or
  null (`values` says how what JSON does not have is written);
- ``"settings"``: a list of the hyperparameters of parameter groups;
- ``"parameters"``: by the name that the Hugging Face model gives each trained parameter

  - ``"shape"``: of the whole, as that model has it;
  - ``"division"``: how tensor parallelism held it: ``"shard"``, the first rank's
    `npu_plugins.tensor_parallel.shard.Shard` or null for a whole one, and ``"transposed"``;
  - ``"settings"``: number in the list above;
  - ``"scalars"``: what the optimizer keeps once for all of it, such as ``step``;
  - ``"tensors"``: dtype by key of what has a number for each element: the optimizer's (``exp_avg``, …), and
    ``fp32``, the master weight, where the model's own files do not hold the same;
  - ``"others"``: [dtype, shape] by key of the optimizer's other tensors, of parameters that were whole only;
  - ``"fragments"``: [tensor-parallel rank, start, length, file] of each piece. Start and length count
    elements of that rank's part, held as ``division`` says and flattened.

A file holds each piece's tensors, flat, under ``<parameter>/<key>``; those of ``"others"`` in their shapes.
Weights that are not under ``fp32``, frozen parameters and buffers are in the model's safetensors, in the
checkpoint above the folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ds_configs.errors import DsConfigError
from ds_configs.parallel import ParallelConfig
from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import DTYPES, check_inside
from npu_plugins.checkpoint.manifest import Layout
from npu_plugins.pipeline.checkpoints.division import Division
from npu_plugins.tensor_parallel.errors import TensorParallelError

STATE_FOLDER = "training_state"
INDEX_FILE = "index.json"
FORMAT = "npu_plugins.training_state"
VERSION = 1
MASTER = "fp32"
"""The key of a master weight, as universal checkpoints call it."""


class Fragment(NamedTuple):
    """A piece of a parameter in one rank's file."""

    tp_rank: int
    """Whose part it is a piece of."""
    start: int
    """Where it begins in that part, flattened."""
    length: int
    """Its elements."""
    file: str


@dataclass
class ParameterState:
    """What is saved of one trained parameter."""

    shape: tuple[int, ...]
    """Of the whole, as the Hugging Face model has it."""
    division: Division
    """The first tensor-parallel rank's."""
    settings: int
    """Number of its hyperparameters in `StateIndex.settings`."""
    scalars: dict[str, Any] = field(default_factory=dict)
    """What there is once of, such as step."""
    tensors: dict[str, str] = field(default_factory=dict)
    """safetensors' dtype by key of what has a number for each element."""
    others: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """dtype and shape by key of the optimizer's other tensors."""
    fragments: list[Fragment] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "shape": list(self.shape),
            "division": self.division.plain(),
            "settings": self.settings,
            "scalars": self.scalars,
            "tensors": self.tensors,
            "others": {key: [dtype, list(shape)] for key, (dtype, shape) in self.others.items()},
            "fragments": [list(each) for each in self.fragments],
        }

    @classmethod
    def from_plain(cls, told: Mapping[str, Any]) -> ParameterState:
        """Return what `plain` described."""
        return cls(
            tuple(map(int, told["shape"])),
            Division.from_plain(told["division"]),
            int(told["settings"]),
            dict(told["scalars"]),
            {str(key): str(dtype) for key, dtype in told["tensors"].items()},
            {key: (str(dtype), tuple(map(int, shape))) for key, (dtype, shape) in told["others"].items()},
            [Fragment(int(tp), int(start), int(n), str(file)) for tp, start, n, file in told["fragments"]],
        )


@dataclass
class StateIndex:
    """The content of an index."""

    layout: Layout
    optimizer: str
    settings: list[dict[str, Any]]
    parameters: dict[str, ParameterState]
    counters: dict[str, Any] = field(default_factory=dict)
    scheduler: dict[str, Any] | None = None
    loss_scale: dict[str, Any] | None = None

    def write(self, folder: Path) -> None:
        """Write it into ``training_state``, synchronised to the disk."""
        body = {
            "format": FORMAT,
            "version": VERSION,
            "layout": {**dataclasses.asdict(self.layout.parallel), "zero_stage": self.layout.zero_stage},
            "optimizer": self.optimizer,
            "counters": self.counters,
            "scheduler": self.scheduler,
            "loss_scale": self.loss_scale,
            "settings": self.settings,
            "parameters": {name: each.plain() for name, each in sorted(self.parameters.items())},
        }
        with (folder / INDEX_FILE).open("w", encoding="utf-8") as file:
            json.dump(body, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def read(cls, folder: str | Path) -> StateIndex:
        """Read the index of a folder ``training_state``.

        Raises:
            CheckpointError: there is none, or it is damaged or of a later version.
        """
        file = Path(folder) / INDEX_FILE
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
            if body["format"] == FORMAT and body["version"] == VERSION:
                return cls._of(body, file)
            kind, version = body["format"], body["version"]
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{file} is missing: the checkpoint has no state of training, or was not copied "
                "whole; give another checkpoint"
            ) from error
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            DsConfigError,
            TensorParallelError,
        ) as error:
            raise CheckpointError(
                f"{file} cannot be read, it is cut short or damaged ({type(error).__name__}: {error}); copy "
                "it again, or give another checkpoint"
            ) from error
        raise CheckpointError(
            f"{file} is {kind!r} of version {version!r}, but this npu_plugins reads {FORMAT!r} of version "
            f"{VERSION}; install a later one"
        )

    @classmethod
    def _of(cls, body: Mapping[str, Any], file: Path) -> StateIndex:
        degrees = dict(body["layout"])
        stage = int(degrees.pop("zero_stage"))
        parameters = {name: ParameterState.from_plain(told) for name, told in body["parameters"].items()}
        for name in {each.file for state in parameters.values() for each in state.fragments}:
            check_inside(name, file)
        settings = [dict(each) for each in body["settings"]]
        for name, state in parameters.items():
            if not 0 <= state.settings < len(settings):
                raise ValueError(f"{name} has settings {state.settings} of {len(settings)}")
            for code in (*state.tensors.values(), *(dtype for dtype, _ in state.others.values())):
                if code not in DTYPES:
                    raise ValueError(f"{name} has dtype {code!r}, which is none of {', '.join(DTYPES)}")
        return cls(
            Layout(ParallelConfig(**degrees), stage),
            str(body["optimizer"]),
            settings,
            parameters,
            dict(body["counters"]),
            body["scheduler"],
            body["loss_scale"],
        )

    def files(self) -> dict[str, dict[str, tuple[str, tuple[int, ...]]]]:
        """Return what each file must hold: dtype and shape by the name of the tensor."""
        found: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
        for name, state in self.parameters.items():
            for fragment in state.fragments:
                held = found.setdefault(fragment.file, {})
                held |= {f"{name}/{key}": (dtype, (fragment.length,)) for key, dtype in state.tensors.items()}
                held |= {f"{name}/{key}": kind for key, kind in state.others.items()}
        return found


def holds_state(checkpoint: str | Path) -> bool:
    """Whether a checkpoint's directory has a portable state of training."""
    return (Path(checkpoint) / STATE_FOLDER / INDEX_FILE).is_file()
