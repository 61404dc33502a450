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

from npu_plugins.checkpoint.files import CheckpointFiles
from npu_plugins.checkpoint.load import check_shapes, check_stored_as_is, read_local, stored_names
from npu_plugins.pipeline.errors import PipelineError
from npu_plugins.pipeline.hf.draw import draw
from npu_plugins.tensor_parallel.filling import filled_like, take_local


class Source(Protocol):
    """Gives the weights of a whole model, parameter by parameter."""

    def open(self, skeleton: nn.Module, names: set[str]) -> None:
        """Get ready to give the parameters `names` of a model like `skeleton`, and no others."""

    def weight(self, name: str, parameter: nn.Parameter, device: torch.device) -> torch.Tensor:
        """Return what `parameter`, which is on the meta device, holds: its part, where it is divided.

        On `device`, in its dtype.
        """


class Taken:
    """From a model that has them."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = dict(model.named_parameters(remove_duplicate=False))

    def open(self, skeleton: nn.Module, names: set[str]) -> None:
        """Keep those of this rank; the others are free as soon as the caller lets go of the model."""
        self.parameters = {name: self.parameters[name] for name in names}

    def weight(self, name: str, parameter: nn.Parameter, device: torch.device) -> torch.Tensor:
        """Return the model's own tensor, copied only where device or dtype differ, or its part."""
        return take_local(parameter, self.parameters.pop(name).detach()).to(device, parameter.dtype)


class Drawn:
    """Drawn at random as transformers does."""

    def __init__(self, model_class: Any, config: Any, dtype: torch.dtype) -> None:
        self.model_class, self.config, self.dtype = model_class, config, dtype
        self.drawn: dict[str, torch.Tensor] = {}

    def open(self, skeleton: nn.Module, names: set[str]) -> None:
        """Draw."""
        self.drawn = draw(self.model_class, self.config, self.dtype, names)

    def weight(self, name: str, parameter: nn.Parameter, device: torch.device) -> torch.Tensor:
        """Return what was drawn."""
        return take_local(parameter, self.drawn.pop(name)).to(device)


class Stored:
    """From a directory that `save_pretrained` wrote."""

    def __init__(self, directory: str | Path) -> None:
        self.files = CheckpointFiles.open(directory)
        self.names: dict[str, str] = {}

    def open(self, skeleton: nn.Module, names: set[str]) -> None:
        """Compare the directory with the model."""
        check_stored_as_is(skeleton)
        self.names = stored_names(skeleton, self.files)
        check_shapes(skeleton, self.files, self.names)

    def weight(self, name: str, parameter: nn.Parameter, device: torch.device) -> torch.Tensor:
        """Read one tensor, or this rank's part of it."""
        return read_local(parameter, device, self.files, self.names[name])


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


def check_like(model: nn.Module, skeleton: nn.Module) -> None:
    """Refuse a model that was changed after its configuration built it: the stages would not have the change.

    Raises:
        PipelineError: naming what differs.
    """
    found = {name: type(module) for name, module in model.named_modules()}
    wanted = {name: type(module) for name, module in skeleton.named_modules()}
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters(remove_duplicate=False)}
    expected = {name: tuple(each.shape) for name, each in skeleton.named_parameters(remove_duplicate=False)}
    for what, these, those in (("module", found, wanted), ("parameter", shapes, expected)):
        for name in {**these, **those}:
            if these.get(name) != those.get(name):
                raise PipelineError(
                    f"{what} {name} of {type(model).__name__} is {_told(these.get(name))}, but its "
                    f"configuration makes {_told(those.get(name))}; split_model builds the stages from the "
                    "configuration: change that, or split first and change the stages"
                )
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise PipelineError(
                f"module {name or type(model).__name__} has forward hooks, which the stages would not have; "
                "split first and put hooks on the stages"
            )


def _told(value: Any) -> str:
    if value is None:
        return "absent"
    return value.__name__ if isinstance(value, type) else f"of shape {list(value)}"
