"""Comparing the weights of two checkpoints, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from npu_plugins.checkpoint.convert import open_source
from npu_plugins.checkpoint.sources import Source
from npu_plugins.diagnostics.consistency.checksums import bits


@dataclass(frozen=True)
class CheckpointComparison:
    """Two checkpoints side by side."""

    first: str
    second: str
    tensors: int
    """That both have."""
    differing: tuple[str, ...] = ()
    """Names, in the first one's order."""
    told: str = ""
    """How the first of these differs."""
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether all weights are the same."""
        return not (self.differing or self.only_first or self.only_second)

    def __str__(self) -> str:
        """Return it as lines."""
        if self.same:
            return f"all {self.tensors} tensors are the same, bit by bit, in {self.first} and {self.second}"
        lines = []
        if self.differing:
            lines.append(f"{len(self.differing)} of {self.tensors} tensors differ; the first is {self.told}")
        for where, names in ((self.first, self.only_first), (self.second, self.only_second)):
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                lines.append(f"only in {where}: {', '.join(names[:3])}{more}")
        return "\n".join(lines)


def compare_checkpoints(first: str | Path, second: str | Path) -> CheckpointComparison:
    """Compare the weights of two checkpoints of any kind that `npu-plugins checkpoint convert` reads.

    One tensor of each is in memory at a time.

    Raises:
        CheckpointError: one is none that is known, or is damaged.
    """
    (_, one), (_, other) = (open_source(path) for path in (first, second))
    common = [name for name in one.tensors if name in other.tensors]
    differing, told = [], ""
    for name in common:
        difference = _difference(name, one, other)
        if difference:
            differing.append(name)
            told = told or difference
    return CheckpointComparison(
        str(first),
        str(second),
        len(common),
        tuple(differing),
        told,
        tuple(name for name in one.tensors if name not in other.tensors),
        tuple(name for name in other.tensors if name not in one.tensors),
    )


def _difference(name: str, one: Source, other: Source) -> str:
    """Say how a tensor differs; nothing where it does not."""
    left, right = one.tensors[name], other.tensors[name]
    if left != right:
        kinds = [f"{list(each.shape)} of {str(each.dtype)[6:]}" for each in (left, right)]
        return f"{name}: {kinds[0]} against {kinds[1]}"
    a, b = one.read(name), other.read(name)
    if torch.equal(bits(a), bits(b)):
        return ""
    per_element = max(1, bits(a).numel() // max(1, a.numel()))
    differs = (bits(a) != bits(b)).view(-1, per_element).any(1)
    place = int(differs.to(torch.uint8).argmax())
    index = [int(each) for each in torch.unravel_index(torch.tensor(place), a.shape)]
    values = [each.reshape(-1)[place].item() for each in (a, b)]
    largest = float((a.double() - b.double()).abs().max())
    return (
        f"{name}{index}: {values[0]:.9g} against {values[1]:.9g}; {int(differs.sum())} of its {a.numel()} "
        f"elements differ, by at most {largest:.3g}"
    )
