"""Which module of a pipeline has its state in the file of which layer."""

from __future__ import annotations

from typing import Any, NamedTuple

from deepspeed.runtime.pipe.module import TiedLayerSpec
from torch import nn


class Stored(NamedTuple):
    """A module of this rank and the layers in whose files its state may be."""

    module: nn.Module
    prefix: str
    """Of its parameters' names in the pipeline."""
    layers: tuple[int, ...]
    """The first whose file is there counts."""


def stored_modules(module: Any) -> list[Stored]:
    """Return the modules of a `PipelineModule`'s rank that have state."""
    found: dict[str, Stored] = {}
    uses = tied_uses(module)
    for stage in module.own_stages:
        for index, function in enumerate(module.stage_funcs[stage], module.parts[stage]):
            spec = module._layer_specs[index]
            if isinstance(spec, TiedLayerSpec):
                tied, prefix = module.tied_modules[spec.key], f"tied_modules.{spec.key}."
                layers = tuple(dict.fromkeys([index, *uses[spec.key]]))
                found.setdefault(prefix, Stored(tied, prefix, layers))
            elif isinstance(function, nn.Module):
                found[f"{index}."] = Stored(function, f"{index}.", (index,))
    return [each for each in found.values() if each.module.state_dict()]


def tied_uses(module: Any) -> dict[str, list[int]]:
    """Return the layers of each tied module, of all ranks."""
    uses: dict[str, list[int]] = {}
    for index, spec in enumerate(module._layer_specs):
        if isinstance(spec, TiedLayerSpec):
            uses.setdefault(spec.key, []).append(index)
    return uses


def functions_to_save(module: Any, stage: int) -> list[Any]:
    """Return the stage's functions, with the tied module in place of one that is called through a function.

    DeepSpeed writes a file for what has a ``state_dict``, so not for a tied module with a ``forward_fn``.
    That is right for all but the first use, where it loses the module if every use has one; and for a stage's
    first use, where it loses what the module has besides its tied weights.
    """
    uses, seen = tied_uses(module), set()
    functions = []
    for index, function in enumerate(module.stage_funcs[stage], module.parts[stage]):
        spec = module._layer_specs[index]
        if isinstance(spec, TiedLayerSpec):
            tied = module.tied_modules[spec.key]
            more = tied.state_dict().keys() - set(module.tied_weight_attrs[spec.key])
            if index == uses[spec.key][0] or (more and spec.key not in seen):
                function = tied
            seen.add(spec.key)
        functions.append(function)
    return functions
