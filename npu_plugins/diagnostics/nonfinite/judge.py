"""Which of the events of a step, from all ranks, made the first value that is not finite. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from npu_plugins.diagnostics.errors import DiagnosticsError

PARAMETER, INPUT, BETWEEN, OUTPUT = "parameter", "input", "input between modules", "output"
OUTPUT_GRADIENT, PARAMETER_GRADIENT = "gradient of the output", "gradient of the parameter"
BACKWARD = (OUTPUT_GRADIENT, PARAMETER_GRADIENT)


class NonFiniteError(DiagnosticsError):
    """A step made nan or infinity; the sentence says where it came up first."""


@dataclass(frozen=True)
class Event:
    """A tensor with values that are not finite, seen at one moment of a step."""

    kind: str
    """PARAMETER when its module ran; INPUT of an outermost module; BETWEEN: of an inner one, that no module
    made; OUTPUT of a module; OUTPUT_GRADIENT and PARAMETER_GRADIENT."""
    name: str
    """Of the module, or of the parameter, in the Hugging Face model."""
    order: int
    """Place among all tensors that this rank looked at in the step."""
    nans: int
    infinities: int
    numel: int
    consumers: tuple[str, ...] = ()
    """Of an output: modules that took the tensor as an input, outermost first."""
    like_mask: bool = False
    """Whether all of it is -inf, which masks are made of."""

    def amounts(self) -> str:
        """Return how many values are not finite."""
        return f"{self.nans} nan and {self.infinities} infinite of {self.numel} values"


@dataclass(frozen=True)
class RankEvents:
    """What one rank saw in a step."""

    rank: int
    stage: int
    """Place on the pipeline axis."""
    events: tuple[Event, ...]
    """In the order of time."""
    scaled: bool = False
    """Whether the gradients are of a loss that a scaler multiplied, and may overflow."""
    place: str = ""
    """Where the rank stands, such as tp 1, dp 0."""
    usual: frozenset[tuple[str, str]] = frozenset()
    """(kind, name) of what was not finite in steps that ended well, such as masks of -inf."""


@dataclass(frozen=True)
class Finding:
    """The first value that is not finite."""

    ranks: tuple[int, ...]
    """Where it came up; several, where all of them made it at the same place."""
    event: Event
    step: int | None = None
    places: Mapping[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return it as a sentence with its mend."""
        where = ", ".join(
            f"{rank} ({self.places[rank]})" if self.places.get(rank) else str(rank) for rank in self.ranks
        )
        at = "" if self.step is None else f"step {self.step}: "
        ranks = f"rank{'s' * (len(self.ranks) > 1)} {where}"
        return (
            f"{at}the first value that is not finite came up on {ranks} in {self._what()}: "
            f"{self.event.amounts()}; {self._mend()}"
        )

    def _what(self) -> str:
        event, name = self.event, self.event.name or "the model"
        if event.kind == OUTPUT:
            return f"the forward of {name}, whose inputs and parameters are finite"
        if event.kind == OUTPUT_GRADIENT:
            by = (
                f"the backward of {event.consumers[-1]}"
                if event.consumers
                else "what uses it, such as the loss"
            )
            return f"the gradient of the output of {name}, that is in {by}"
        if event.kind in (INPUT, BETWEEN):
            return f"the input of {name}"
        return f"the {event.kind} {name}"

    def _mend(self) -> str:
        return {
            PARAMETER: "the optimizer's step before this one, or the checkpoint, made it: lower the learning "
            "rate, clip gradients, or load an earlier checkpoint",
            INPUT: "the data brought it in: look at the batch",
            BETWEEN: "the code before that module, of the module around it, made it",
            OUTPUT: "look for a division, logarithm, exponential or overflow there",
        }.get(self.event.kind, "the forward was finite: look for a root or division at zero there")


def is_alarm(ranks: Sequence[RankEvents]) -> bool:
    """Whether a step went wrong, seen from all ranks.

    A value that is not finite is none by itself: masks are, and a scaler of fp16 tries out scales at which
    gradients overflow. A step is wrong if a gradient or a parameter is not finite in the end, under a scaler
    if something of the forward is not finite besides.
    """
    end = (PARAMETER, PARAMETER_GRADIENT)
    for rank in ranks:
        if any(event.kind == PARAMETER for event in rank.events):
            return True
    if not any(event.kind in end for rank in ranks for event in rank.events):
        return False
    scaled = any(rank.scaled for rank in ranks)
    return not scaled or any(event.kind not in BACKWARD for rank in ranks for event in _unusual(rank))


def first_bad(ranks: Sequence[RankEvents], step: int | None = None) -> Finding | None:
    """Return what made the first value that is not finite, or None if the step is well.

    Parameters that were so before the step come first, then the forward from the first stage on, then the
    backward from the last stage on. Ranks of one stage run the same program, so that the earlier of their
    events is the one with the lower place in it; ranks that got the value from another rank see it later.
    """
    if not is_alarm(ranks):
        return None
    candidates = [(_key(rank, event), rank, event) for rank in ranks for event in _unusual(rank)]
    if not candidates:  # all of it has been there before
        candidates = [(_key(rank, event), rank, event) for rank in ranks for event in rank.events]
    least = min(key for key, *_ in candidates)
    first = [(rank, event) for key, rank, event in candidates if key == least]
    places = {rank.rank: rank.place for rank, _ in first}
    return Finding(tuple(sorted(rank.rank for rank, _ in first)), first[0][1], step, places)


def _unusual(rank: RankEvents) -> list[Event]:
    """Events that can be the cause; a mask is none unless a module that took it made something bad of it."""
    spoiled = {event.name for event in rank.events if event.kind == OUTPUT and not event.like_mask}
    return [
        event
        for event in rank.events
        if (event.kind, event.name) not in rank.usual
        and (not event.like_mask or spoiled.intersection(event.consumers))
    ]


def _key(rank: RankEvents, event: Event) -> tuple[int, int, int]:
    if event.kind == PARAMETER:
        return 0, rank.stage, event.order
    if event.kind in BACKWARD:
        return 2, -rank.stage, event.order
    return 1, rank.stage, event.order
