"""Where a model's layers are cut into stages."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import nn

from npu_plugins.pipeline.errors import PipelineError

Bounds = tuple[int, ...]
"""Stage s holds the layers ``bounds[s]`` to ``bounds[s + 1] - 1``."""


def balanced(weights: Sequence[float], stages: int) -> Bounds:
    """Cut so that the heaviest stage is as light as can be, and of such cuts the one nearest to even.

    Every stage gets at least one layer. Among cuts with the same heaviest stage, the sum of squared stage
    weights is smallest, then the squared numbers of layers: layers without weight are spread as well.

    Raises:
        PipelineError: there are more stages than layers.
    """
    count = len(weights)
    if stages > count:
        raise PipelineError(
            f"{stages} stages for {count} layers: every stage needs a layer; use {count} stages or fewer, "
            "fewer virtual_stages, or cut layers into smaller ones"
        )
    sums = [0, *accumulate(weights)]

    def heaviest(first: int, stop: int, before: tuple[float, ...]) -> tuple[float, ...]:
        return (max(before[0], sums[stop] - sums[first]),)

    (limit,), _ = _best(count, stages, (float("-inf"),), heaviest)

    def evenness(first: int, stop: int, before: tuple[float, ...]) -> tuple[float, ...] | None:
        weight = sums[stop] - sums[first]
        return (before[0] + weight**2, before[1] + (stop - first) ** 2) if weight <= limit else None

    return _best(count, stages, (0.0, 0.0), evenness)[1]


def _best(
    count: int,
    stages: int,
    start: tuple[float, ...],
    add: Callable[[int, int, tuple[float, ...]], tuple[float, ...] | None],
) -> tuple[tuple[float, ...], Bounds]:
    """Return the smallest cost of `count` layers in `stages` stages, and the cut that has it.

    `add` returns what a stage of the layers ``first`` to ``stop - 1`` makes of the cost before it, or None.
    """
    best: list[tuple[tuple[float, ...], Bounds] | None] = [(start, (0,))] + [None] * count
    for stage in range(1, stages + 1):
        following: list[tuple[tuple[float, ...], Bounds] | None] = [None] * (count + 1)
        for stop in range(stage, count - (stages - stage) + 1):
            for first in range(stage - 1, stop):
                before = best[first]
                cost = None if before is None else add(first, stop, before[0])
                if before is not None and cost is not None:
                    option = (cost, (*before[1], stop))
                    known = following[stop]
                    following[stop] = option if known is None else min(known, option)
        best = following
    found = best[count]
    assert found is not None, "one layer a stage is always possible"
    return found


def explicit(counts: Sequence[int], layers: int, stages: int) -> Bounds:
    """Cut as the user says.

    Raises:
        PipelineError: the counts do not fit stages or layers.
    """
    if len(counts) != stages:
        raise PipelineError(
            f"partition {list(counts)} has {len(counts)} numbers for {stages} stages; give one each"
        )
    if min(counts) < 1 or sum(counts) != layers:
        raise PipelineError(
            f"partition {list(counts)} places {sum(counts)} layers, but the model has {layers}, and every "
            "stage needs one; give numbers of 1 or more with that sum"
        )
    return (0, *accumulate(counts))


def cut(
    specs: Sequence[Any],
    stages: int,
    method: str | Sequence[int],
    measure: Callable[[], Sequence[float]] | None = None,
) -> Bounds:
    """Cut a module's layers into stages.

    Args:
        specs: DeepSpeed's LayerSpecs, modules or functions.
        stages: of all ranks, chunks counted singly.
        method: uniform, parameters, type:REGEX, time, or the number of layers of each stage.
        measure: for time: returns each layer's seconds, equal on all ranks.

    Raises:
        PipelineError: more stages than layers, an unknown method, a regex that is none or matches no layer.
    """
    if stages > len(specs):
        raise PipelineError(
            f"{stages} stages for {len(specs)} layers ({_listed(specs)}): every stage needs a layer; use "
            f"{len(specs)} stages or fewer, fewer virtual_stages, or cut layers into smaller ones"
        )
    if not isinstance(method, str):
        return explicit(list(method), len(specs), stages)
    name = method.lower()
    if name == "uniform":
        return balanced([1] * len(specs), stages)
    if name == "parameters":
        return balanced([count_parameters(spec) for spec in specs], stages)
    if name.startswith("type:"):
        return balanced(_matching(specs, method[5:]), stages)
    if name == "time":
        if measure is None:
            raise PipelineError(
                "partition time measures the layers, but there is nothing to run them on; give "
                "PipelineModule a sample_input, as the first layer takes it"
            )
        return balanced(measure(), stages)
    raise PipelineError(
        f"partition is {method!r}; choose uniform, parameters, type:REGEX, time, or the layers of each stage"
    )


def count_parameters(spec: Any) -> int:
    """Return how many trainable numbers a layer has, without allocating them where that can be avoided."""
    layer = spec
    if hasattr(spec, "build"):
        try:
            with torch.device("meta"):
                layer = spec.build()
        except (RuntimeError, NotImplementedError):  # it computes with its weights while it is built
            layer = spec.build()
    if not isinstance(layer, nn.Module):
        return 0
    return sum(parameter.numel() for parameter in layer.parameters() if parameter.requires_grad)


def measure_layers(specs: Sequence[Any], sample: Any, device: torch.device, repeats: int = 3) -> list[float]:
    """Return the seconds that forward and backward of each layer take, the shortest of `repeats`.

    One layer at a time is built, on this rank, and run on the output of the one before.

    Args:
        specs: the layers.
        sample: the first layer's input.
        device: where they run.
        repeats: after one run that is not counted.
    """
    from torch.utils._pytree import tree_leaves, tree_map_only

    seconds = []
    value = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), sample)
    for spec in specs:
        layer = spec.build() if hasattr(spec, "build") else spec
        run: Any = getattr(spec, "forward_fn", None)
        if isinstance(layer, nn.Module):
            layer = layer.to(device)
        run = layer if run is None else _bound(run, layer)
        value = tree_map_only(torch.Tensor, _as_input, value)
        times = []
        output: Any = None
        for _ in range(repeats + 1):
            _synchronize(device)
            began = time.perf_counter()
            output = run(value)
            roots = [
                leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
            ]
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
            _synchronize(device)
            times.append(time.perf_counter() - began)
        seconds.append(min(times[1:]))
        value = output
    return seconds


def _matching(specs: Sequence[Any], pattern: str) -> list[int]:
    try:
        expression = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise PipelineError(f"partition type:{pattern} is no regular expression ({error})") from error
    names = [type_name(spec) for spec in specs]
    weights = [int(bool(expression.search(name))) for name in names]
    if not any(weights):
        raise PipelineError(
            f"partition type:{pattern} matches no layer; their classes are {', '.join(sorted(set(names)))}"
        )
    return weights


def _listed(specs: Sequence[Any]) -> str:
    """Name the layers, equal ones in a row once: Embed, 4 × Block, Head."""
    rows = [(name, len(list(row))) for name, row in groupby(type_name(spec) for spec in specs)]
    return ", ".join(name if count == 1 else f"{count} × {name}" for name, count in rows)


def type_name(spec: Any) -> str:
    """Return the name of a layer's class, or of the function."""
    if hasattr(spec, "typename"):
        return spec.typename.__name__
    return (
        type(spec).__name__ if isinstance(spec, nn.Module) else getattr(spec, "__name__", type(spec).__name__)
    )


def _as_input(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.is_floating_point())


def _bound(function: Callable[[Any, Any], Any], layer: Any) -> Callable[[Any], Any]:
    return lambda value: function(layer, value)


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
