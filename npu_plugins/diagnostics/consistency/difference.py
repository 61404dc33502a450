"""What a comparison of ranks has found, and how it is told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

ROUNDING = 1e-3
"""A difference of less than this share of the tensor's norm, in many elements, looks like rounding."""


@dataclass(frozen=True)
class Element:
    """The first element in which a rank's tensor differs from the one that it is compared with."""

    index: tuple[int, ...]
    """In the tensor as the rank has it."""
    here: float
    there: float
    bits_here: str
    """In hexadecimal."""
    bits_there: str
    count: int
    """How many elements of the tensor differ."""

    def flipped(self) -> int | None:
        """Return which bit differs, counted from the lowest; None if several do."""
        changed = int(self.bits_here, 16) ^ int(self.bits_there, 16)
        return changed.bit_length() - 1 if changed.bit_count() == 1 else None


@dataclass(frozen=True)
class Difference:
    """The first tensor in which the ranks of one group differ."""

    what: str
    """gradient, parameter or master weight."""
    name: str
    """Of the parameter in the Hugging Face model."""
    axis: str
    """On which the ranks should hold the same."""
    ranks: tuple[int, ...]
    """Global ranks of the group."""
    odd: tuple[int, ...]
    """Ranks that differ from most of the others; all, where no more than half agree."""
    further: int
    """How many tensors of the group differ besides."""
    numel: int = 0
    norms: Mapping[int, float] = field(default_factory=dict)
    """2-norm of the tensor on each rank."""
    elements: Mapping[int, Element] = field(default_factory=dict)
    """By rank that differs from the first of those that agree."""
    note: str = ""
    """What there is to say of ranks that hold other tensors altogether."""

    @property
    def known(self) -> bool:
        """Whether most ranks agree, so that the others are the odd ones."""
        return len(self.odd) < len(self.ranks)

    def __str__(self) -> str:
        """Return it as a few lines, the first one a sentence that names tensor and ranks."""
        group = f"the {self.axis} ranks {_numbers(self.ranks)}"
        if self.note:
            return f"{self.name}: {self.what} is not on all of {group}: {self.note}"
        if self.known:
            others = tuple(rank for rank in self.ranks if rank not in self.odd)
            told = f"{_ranks(self.odd)} differ{'s' * (len(self.odd) == 1)} from {_ranks(others)}"
        else:
            told = f"{_ranks(self.ranks)} differ, and no majority says which is right"
        lines = [f"{self.name}: {self.what} differs between {group}: {told}"]
        lines += [f"  Rank {rank}: {self.what}_norm={self.norms[rank]:.6g}" for rank in self._shown()]
        for rank, element in self.elements.items():
            lines.append(f"  {_element(rank, element, self.numel)}")
        if self.further:
            lines.append(f"  so do {self.further} further tensors of these ranks")
        if self._like_rounding():
            lines.append(
                "  the differences are as small as rounding: if all of them are so, a kernel that is not "
                "deterministic makes them (torch.use_deterministic_algorithms(True))"
            )
        return "\n".join(lines).replace("master weight_norm", "norm")

    def _shown(self) -> list[int]:
        """Ranks whose norm is shown: the odd ones and one of the others."""
        others = [rank for rank in self.ranks if rank not in self.odd][:1]
        return [rank for rank in self.ranks if rank in (*self.odd[:8], *others) and rank in self.norms]

    def _like_rounding(self) -> bool:
        """Whether many elements differ, and the first by little: a flipped bit is alone."""
        if (
            not self.elements
            or not self.numel
            or any(e.count * 100 < self.numel for e in self.elements.values())
        ):
            return False
        scale = max((norm for norm in self.norms.values() if math.isfinite(norm)), default=0.0)
        typical = scale / math.sqrt(self.numel)
        return all(abs(e.here - e.there) <= ROUNDING * typical for e in self.elements.values())


@dataclass(frozen=True)
class Outcome:
    """What one check of all ranks has found; the same on every rank."""

    what: str
    """gradients or parameters."""
    tensors: int
    """How many were compared on the rank that compared most."""
    differences: tuple[Difference, ...] = ()
    step: int | None = None

    def __str__(self) -> str:
        """Return the report."""
        at = "" if self.step is None else f" at step {self.step}"
        if not self.differences:
            return f"{self.what}{at}: {self.tensors} tensors alike, bit by bit, on all ranks that share them"
        return f"{self.what}{at} differ between ranks\n" + "\n".join(map(str, self.differences))

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, told: Mapping[str, Any]) -> Outcome:
        """Return what `plain` described.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        found = [
            Difference(
                **{
                    **each,
                    "ranks": tuple(each["ranks"]),
                    "odd": tuple(each["odd"]),
                    "norms": {int(rank): norm for rank, norm in each["norms"].items()},
                    "elements": {
                        int(rank): Element(**{**element, "index": tuple(element["index"])})
                        for rank, element in each["elements"].items()
                    },
                }
            )
            for each in told["differences"]
        ]
        return cls(told["what"], told["tensors"], tuple(found), told["step"])


def _element(rank: int, element: Element, numel: int) -> str:
    flipped = element.flipped()
    bit = "" if flipped is None else f", bit {flipped} alone"
    return (
        f"first differing element {list(element.index)}: {element.here:.9g} (0x{element.bits_here}) on rank "
        f"{rank}, {element.there:.9g} (0x{element.bits_there}) elsewhere{bit}; "
        f"{element.count} of {numel} differ"
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {_numbers(ranks)}"


def _numbers(ranks: Sequence[int]) -> str:
    if len(ranks) > 8:
        return f"{', '.join(map(str, ranks[:4]))}, … {ranks[-1]} ({len(ranks)} of them)"
    return ", ".join(map(str, ranks))
