"""Hooks that look, on demand, at every tensor of a training step, and wait for the device once a step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves

from npu_plugins.comm import ProcessMesh
from npu_plugins.diagnostics.consistency.holdings import bare, holders
from npu_plugins.diagnostics.nonfinite.judge import (
    BETWEEN,
    INPUT,
    OUTPUT,
    OUTPUT_GRADIENT,
    PARAMETER,
    PARAMETER_GRADIENT,
    Event,
    Finding,
    NonFiniteError,
    RankEvents,
    first_bad,
)

PIECE = 1 << 22
"""Elements that are counted at a time: devices make up to 9 bytes of each."""


class _Look(NamedTuple):
    """A tensor that was looked at; how many of its values are not finite the device knows."""

    kind: str
    name: str
    counts: torch.Tensor
    """``[3]``: nans, infinities, and how many of these are negative."""
    numel: int
    output: int
    """Number of the output that it is, or is the gradient of; 0 for others."""


class _Output(NamedTuple):
    """A tensor that a module returned."""

    number: int
    tensor: weakref.ref[torch.Tensor]


class NonFiniteFinder:
    """Finds the module that makes the first nan or infinity of a training step.

    While it is attached, each module's outputs, the gradients that come back to them, parameters when their
    module runs, their gradients, and inputs that no module made are counted on the device; the host reads all
    counts at once, when the step has ended. Nothing is attached, and nothing costs, before `attach`.

    All of it are forward hooks of modules and hooks of tensors, which neither wrap nor change tensors, so
    that the model computes what it did, recomputed layers included.
    """

    def __init__(
        self, model: Any, mesh: ProcessMesh | None = None, *, names: Mapping[str, str] | None = None
    ) -> None:
        """Take DeepSpeed's engine, DistributedDataParallel or a module, and the mesh of the job.

        Args:
            model: with the modules to watch.
            mesh: of the job; None: all ranks are replicas.
            names: of modules, by their names in the model, for the report; by default Hugging Face's.
        """
        self._module = bare(model)
        self._mesh = getattr(model, "mesh", None) if mesh is None else mesh
        self._names = dict(names) if names is not None else _module_names(self._module)
        self._handles: list[Any] = []
        self._looks: list[_Look] = []
        self._outputs: dict[int, _Output] = {}
        self._consumers: list[list[str]] = [[]]
        """By number of an output, the modules that took it as an input."""
        self._usual: set[tuple[str, str]] = set()
        self._depth = 0

    def attach(self) -> NonFiniteFinder:
        """Begin to look; a second call does nothing."""
        if self._handles:
            return self
        for path, module in self._module.named_modules():
            name = self._names.get(path, path)
            self._handles += [
                module.register_forward_pre_hook(self._before(name), with_kwargs=True),
                module.register_forward_hook(self._after(name), with_kwargs=True, always_call=True),
            ]
        for name, parameter in holders(self._module):
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(self._noting(PARAMETER_GRADIENT, name)))
        return self

    @property
    def attached(self) -> bool:
        """Whether it looks."""
        return bool(self._handles)

    def detach(self) -> None:
        """Take every hook away, and forget what was seen."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._forget()

    def __enter__(self) -> NonFiniteFinder:
        """Attach."""
        return self.attach()

    def __exit__(self, *args: object) -> None:
        """Detach."""
        self.detach()

    def end_step(self, *, step: int | None = None, scaled: bool = False) -> Finding | None:
        """Judge what was seen since the last call; every rank must call this after each step.

        Args:
            step: for the report.
            scaled: whether a scaler multiplied the loss (fp16), so that overflowing gradients are its matter.

        Returns:
            The first value that was not finite, the same on every rank; None if the step is well.
        """
        mine = self._events(scaled)
        ranks = gather_events(mine, self._device())
        found = first_bad(ranks, step) if ranks else None
        if found is None:
            self._usual |= {(event.kind, event.name) for event in mine.events}
        self._forget()
        return found

    def check_step(self, *, step: int | None = None, scaled: bool = False) -> None:
        """Do as `end_step`, and raise what it found on every rank.

        Raises:
            NonFiniteError: the step made nan or infinity.
        """
        found = self.end_step(step=step, scaled=scaled)
        if found is not None:
            raise NonFiniteError(str(found))

    def _device(self) -> torch.device:
        if self._mesh is not None:
            return self._mesh.device
        return next((each.device for each in self._module.parameters()), torch.device("cpu"))

    def _events(self, scaled: bool) -> RankEvents:
        counts: list[list[int]] = []
        if self._looks:
            counts = torch.stack([look.counts for look in self._looks]).cpu().tolist()
        events = tuple(
            _event(look, order, found, tuple(self._consumers[look.output]))
            for order, (look, found) in enumerate(zip(self._looks, counts, strict=True))
            if any(found)
        )
        rank = dist.get_rank() if dist.is_initialized() else 0
        if self._mesh is None:
            return RankEvents(rank, 0, events, scaled, "", frozenset(self._usual))
        here = self._mesh.coordinate()
        axes = {"tp": here.tp, "pp": here.pp, "dp": here.dp}
        place = ", ".join(f"{axis} {at}" for axis, at in axes.items() if self._mesh.size(axis) > 1)
        return RankEvents(rank, here.pp, events, scaled, place, frozenset(self._usual))

    def _forget(self) -> None:
        self._looks, self._outputs, self._consumers = [], {}, [[]]
        self._depth = 0

    # Hooks

    def _before(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            for tensor in _floating((args, kwargs)):
                known = self._outputs.get(id(tensor))
                if known is not None and known.tensor() is tensor:
                    self._consumers[known.number].append(name)
                else:
                    self._look(BETWEEN if self._depth else INPUT, name, tensor)
            self._depth += 1
            for own, parameter in module.named_parameters(recurse=False):
                self._look(PARAMETER, f"{name}.{own}" if name else own, parameter)

        return hook

    def _after(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            self._depth = max(0, self._depth - 1)
            for tensor in _floating(outputs):
                number = len(self._consumers)
                self._consumers.append([])
                self._outputs[id(tensor)] = _Output(number, weakref.ref(tensor))
                self._look(OUTPUT, name, tensor, number)
                if tensor.requires_grad:
                    tensor.register_hook(self._noting(OUTPUT_GRADIENT, name, number))

        return hook

    def _noting(self, kind: str, name: str, output: int = 0) -> Callable[[torch.Tensor | None], None]:
        def hook(gradient: torch.Tensor | None) -> None:
            # A graph may outlive the step; autograd gives None where a function has no gradient to give, as a
            # pipeline's does whose schedule takes the gradients of weights apart.
            if self._handles and gradient is not None:
                self._look(kind, name, gradient, output)

        return hook

    def _look(self, kind: str, name: str, tensor: torch.Tensor, output: int = 0) -> None:
        if not tensor.numel():
            return
        with torch.no_grad():
            seen = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
            counts = _counts(seen)
        self._looks.append(_Look(kind, name, counts, tensor.numel(), output))


def gather_events(mine: RankEvents, device: torch.device) -> list[RankEvents]:
    """Return the events of all ranks, if one of them has any; every rank must call this.

    Args:
        mine: of this rank.
        device: where the default process group communicates.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [mine] if mine.events else []
    some = torch.tensor([bool(mine.events)], dtype=torch.int32, device=device)
    dist.all_reduce(some, op=dist.ReduceOp.MAX)
    if not some.item():
        return []
    everyone: list[RankEvents] = [mine] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def _counts(seen: torch.Tensor) -> torch.Tensor:
    """Return how many nans, infinities and negative infinities there are, ``[3]``, without waiting for it."""
    pieces = [
        torch.stack([piece.isnan().sum(), piece.isinf().sum(), piece.isneginf().sum()])
        for piece in seen.reshape(-1).split(PIECE)
    ]
    return pieces[0] if len(pieces) == 1 else torch.stack(pieces).sum(0)


def _event(look: _Look, order: int, counts: Sequence[int], consumers: tuple[str, ...]) -> Event:
    nans, infinities, negative = counts
    like_mask = look.kind in (INPUT, BETWEEN, OUTPUT) and not nans and infinities == negative
    return Event(look.kind, look.name, order, nans, infinities, look.numel, consumers, like_mask)


def _floating(nested: Any) -> Iterator[torch.Tensor]:
    for leaf in tree_leaves(nested):
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            yield leaf


def _module_names(module: nn.Module) -> dict[str, str]:
    """Return the Hugging Face names of a pipeline's modules, by their names in it; {} for other models."""
    if not hasattr(module, "hf_model"):
        return {}
    found: dict[str, str] = {}
    for path, part in module.named_modules():
        places = getattr(part, "places", None)
        if isinstance(places, dict):
            found[path] = " and ".join(places.values())
            for name, place in places.items():
                for inner, _ in part.get_submodule(name).named_modules():
                    rest = f".{inner}" if inner else ""
                    found[f"{path}.{name}{rest}"] = f"{place}{rest}"
    return found
