"""Where the weights of a stage come from, and how they get into its modules.

The model that is cut is built without weights; a rank then fills the modules of its own stages. The others
stay on the meta device and are never allocated.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import CheckpointFiles
from npu_plugins.checkpoint.load import check_shapes, check_stored_as_is, read_local, stored_names
from npu_plugins.pipeline.hf.draw import draw
from npu_plugins.tensor_parallel.filling import filled_like, take_local


class Source(Protocol):
    """Gives the weights of a whole model, parameter by parameter."""

    mend: str
    """What to do where `identity` is not the same on all ranks of a replica."""

    def identity(self) -> dict[str, Any]:
        """Return what tells whether another rank's source is of the same weights; asked before `open`."""

    def open(self, skeleton: nn.Module, names: set[str]) -> None:
        """Get ready to give the parameters `names` of a model like `skeleton`, and no others."""

    def weight(self, name: str, parameter: nn.Parameter, device: torch.device) -> torch.Tensor:
        """Return what `parameter`, which is on the meta device, holds: its part, where it is divided.

        It is on `device`.
        """


class Taken:
    """From a model that has them."""

    mend = "seed all ranks alike before the model is built, or load the same checkpoint on all of them"

    def __init__(self, model: nn.Module, dtype: torch.dtype | None) -> None:
        """Take the model; None: each parameter keeps its dtype."""
        self.dtype = dtype
        self.parameters = dict(model.named_parameters(remove_duplicate=False))

    @torch.no_grad()
    def identity(self) -> dict[str, Any]:
        """Return the sum of each parameter."""
        return {name: each.sum(dtype=torch.float32).cpu() for name, each in self.parameters.items()}

    def open(self, skeleton: nn.Module, names: set[str]) -> None:
        """Keep those of this rank; the others are free as soon as the caller lets go of the model."""
        self.parameters = {name: self.parameters[name] for name in names}

    def weight(self, name: str, parameter: nn.Parameter, device: torch.device) -> torch.Tensor:
        """Return the model's own tensor, copied only where device or dtype differ, or its part."""
        full = self.parameters.pop(name).detach()
        return take_local(parameter, full).to(device, self.dtype or full.dtype)


class Drawn:
    """Drawn at random as transformers does."""

    mend = "call torch.manual_seed with one seed on all of them before split_model"

    def __init__(self, model_class: Any, config: Any, dtype: torch.dtype) -> None:
        self.model_class, self.config, self.dtype = model_class, config, dtype
        self.drawn: dict[str, torch.Tensor] = {}

    def identity(self) -> dict[str, Any]:
        """Return the state of the generator that is drawn from."""
        return {"torch's random generator": torch.get_rng_state()}

    def open(self, skeleton: nn.Module, names: set[str]) -> None:
        """Draw."""
        self.drawn = draw(self.model_class, self.config, self.dtype, names)

    def weight(self, name: str, parameter: nn.Parameter, device: torch.device) -> torch.Tensor:
        """Return what was drawn."""
        return take_local(parameter, self.drawn.pop(name)).to(device)


class Stored:
    """From a directory that `save_pretrained` wrote."""

    mend = "give all ranks the same directory, or copies of one save"

    def __init__(self, directory: str | Path) -> None:
        self.files = CheckpointFiles.open(directory)
        self.stored: dict[str, list[str]] = {}
        """By the model's name, those that the files give the tensor; two where a tied one is stored twice."""

    def identity(self) -> dict[str, Any]:
        """Return what the files' headers say."""
        return {
            name: f"{each.file.name} {each.dtype} {each.shape}" for name, each in self.files.tensors.items()
        }

    def open(self, skeleton: nn.Module, names: set[str]) -> None:
        """Compare the directory with the model."""
        check_stored_as_is(skeleton)
        found = stored_names(skeleton, self.files)
        check_shapes(skeleton, self.files, found)
        same: dict[int, list[str]] = {}
        for name, parameter in skeleton.named_parameters(remove_duplicate=False):
            same.setdefault(id(parameter), []).append(name)
        for group in same.values():
            stored = list(dict.fromkeys(found[name] for name in group if name in found))
            self.stored |= dict.fromkeys(group, stored)

    def weight(self, name: str, parameter: nn.Parameter, device: torch.device) -> torch.Tensor:
        """Read one tensor, or this rank's part of it."""
        first, *others = self.stored[name]
        weight = read_local(parameter, device, self.files, first)
        for other in others:
            again = read_local(parameter, torch.device("cpu"), self.files, other)
            if not torch.equal(again, weight.cpu()):
                raise CheckpointError(
                    f"{first} and {other} are tied in the model, but {self.files.directory} stores both and "
                    "they differ; set tie_word_embeddings to false in its config.json, or remove one"
                )
        return weight


def fill(
    skeleton: nn.Module,
    modules: Iterable[nn.Module],
    source: Source,
    device: torch.device,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Give the parameters and buffers of some of a model's modules their values, on `device`.

    Parameters that were one stay one, and divided ones get this rank's part.

    Args:
        skeleton: the whole model with its parameters on the meta device, as `shard_model` left it if at all.
        modules: those to fill.
        source: of the weights.
        device: of the values.
        group: the tensor-parallel group.

    Raises:
        PipelineError: the source has no such parameter.
    """
    modules = list(modules)
    own = {id(parameter) for module in modules for parameter in module.parameters()}
    names = {id(parameter): name for name, parameter in skeleton.named_parameters() if id(parameter) in own}
    source.open(skeleton, set(names.values()))
    made: dict[int, nn.Parameter] = {}
    for module in (each for root in modules for each in root.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in names:
                key = id(parameter)
                if key not in made:
                    weight = source.weight(names[key], parameter, device)
                    made[key] = filled_like(parameter, weight, group)
                setattr(module, name, made[key])
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(device))
