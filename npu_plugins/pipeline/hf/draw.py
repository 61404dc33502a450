"""Random weights of single stages that are those of the whole model.

transformers draws the weights of a model one after the other from torch's generator: each module's own
defaults when it is made, then its `_init_weights`. To get a stage's weights and no others, the whole model is
made once more with only those parameters on the CPU. What would go into one of the others is drawn into a
small buffer, piece by piece: the generator moves on as if it had been there.

That follows ``normal_`` and ``uniform_``, with which all families that can be split draw. ``trunc_normal_``
draws as often as the values it gets demand, and could not be followed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode

from npu_plugins.checkpoint.undrawn import Undrawn
from npu_plugins.pipeline.errors import PipelineError

PIECE = 1 << 16
"""Numbers drawn at once for a parameter that is not kept: few, as what the C library frees in large pieces
need not go back to the system. torch draws a tensor in blocks of 16, with a special end, so that pieces of
a multiple of 16 and an end longer than 16 take what the whole would."""


class Registrations:
    """Sees each parameter as it is put into a module; puts it on the meta device unless it is kept.

    The order is the same each time a model of one configuration is built, and so names parameters before
    their modules have names.
    """

    def __init__(self, kept: set[int]) -> None:
        self.kept = kept
        self.places: list[tuple[nn.Module, str]] = []
        self._handle: Any = None

    def __enter__(self) -> Registrations:
        """Begin."""
        self._handle = register_module_parameter_registration_hook(self._see)
        return self

    def __exit__(self, *_: Any) -> None:
        """End."""
        self._handle.remove()

    def _see(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        number = len(self.places)
        self.places.append((module, name))
        if parameter is None or parameter.device.type == "meta" or number in self.kept:
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    def numbers(self, model: nn.Module, names: set[str]) -> set[int]:
        """Return the numbers of all registrations of the parameters that now have these names."""
        paths = {id(module): path for path, module in model.named_modules()}
        return {
            number
            for number, (module, name) in enumerate(self.places)
            if id(module) in paths and f"{paths[id(module)]}.{name}".lstrip(".") in names
        }


class DrawingElsewhere(TorchDispatchMode):
    """Draws what goes into parameters on the meta device from the CPU's generator, and throws it away."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        kwargs = kwargs or {}
        if args and isinstance(args[0], torch.Tensor) and args[0].device.type == "meta":
            if func in (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default):
                self._draw(func, args[0], args[1:], kwargs)
                return args[0]
            if torch.Tag.nondeterministic_seeded in func.tags:
                raise PipelineError(
                    f"the weights are drawn with {func}, of which stages cannot draw their part alone; build "
                    "the model, and give it to split_model"
                )
        return func(*args, **kwargs)

    def _draw(self, func: Any, target: torch.Tensor, rest: Any, kwargs: Any) -> None:
        left = target.numel()
        buffer = torch.empty(min(left, 2 * PIECE), dtype=target.dtype)
        while left:
            count = PIECE if left >= 2 * PIECE else left
            func(buffer[:count], *rest, **kwargs)
            left -= count


def without_weights(model_class: Any, config: Any, dtype: torch.dtype) -> tuple[Any, Registrations]:
    """Build a model with its parameters on the meta device and its buffers computed; nothing is drawn."""
    with torch.random.fork_rng(devices=[]), Registrations(kept=set()) as registrations, Undrawn():
        model = model_class._from_config(config, dtype=dtype)
    return model, registrations


def draw(model_class: Any, config: Any, dtype: torch.dtype, names: set[str]) -> dict[str, torch.Tensor]:
    """Return some weights of the model that the configuration makes under the generator's present state.

    The generator is afterwards where it would be if the whole model had been made.

    Args:
        model_class: of transformers.
        config: of the model.
        dtype: of its parameters.
        names: of those wanted; all others are drawn and thrown away.

    Raises:
        PipelineError: the model draws in a way that cannot be taken apart.
    """
    skeleton, registrations = without_weights(model_class, config, dtype)
    kept = registrations.numbers(skeleton, names)
    with Registrations(kept), DrawingElsewhere():
        model = model_class._from_config(config, dtype=dtype)
    found = {name: parameter.detach() for name, parameter in model.named_parameters() if name in names}
    lost = [name for name in names if name not in found or found[name].device.type == "meta"]
    if lost:
        raise PipelineError(
            f"{lost[0]} of {model_class.__name__} was replaced while the model was made, so that a stage "
            "cannot draw it alone; build the model, and give it to split_model"
        )
    return found
