"""Whether two runs have the same losses but for rounding. Pure.

How the tolerances were chosen: a tiny Llama was trained for 100 steps in one process, and on 4 ranks at
(tp, pp, dp) of (1, 1, 4), (2, 2, 1) and (2, 1, 2), so that nothing but rounding differed. No step's losses
were further apart than 2.3e-7 of the loss in fp32 and 3.5e-4 in bf16. The bounds leave room for larger
models, whose sums are longer and whose losses move more, and for other kernels; fp16, not measured, has three
bits more than bf16 and half its bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, pstdev
from types import MappingProxyType

from npu_plugins.diagnostics.errors import DiagnosticsError
from npu_plugins.diagnostics.losses.read import Curve

TOLERANCES: Mapping[str, float] = MappingProxyType({"fp32": 1e-4, "fp16": 1e-2, "bf16": 2e-2})
"""Relative; see above."""
STEPS = 100
"""Of the beginning of a run, where rounding has not grown into another path of training."""
STEADY = 0.01
"""A ratio of losses that varies by less is one factor."""


@dataclass(frozen=True)
class Row:
    """Both losses at a step."""

    step: int
    first: float
    second: float

    @property
    def difference(self) -> float:
        """Of the second from the first, relative to the larger one; infinite where just one is finite."""
        if not (math.isfinite(self.first) and math.isfinite(self.second)):
            both = math.isnan(self.first) and math.isnan(self.second)
            return 0.0 if both or self.first == self.second else math.inf
        largest = max(abs(self.first), abs(self.second))
        return (self.second - self.first) / largest if largest else 0.0


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side."""

    rows: tuple[Row, ...]
    tolerance: float
    rounding: float
    """By which a value may be off because few decimals were written."""

    def apart(self, row: Row) -> bool:
        """Whether the losses of a step differ by more than they may."""
        if not math.isfinite(row.difference):
            return True
        largest = max(abs(row.first), abs(row.second))
        return abs(row.second - row.first) > self.tolerance * largest + self.rounding

    @property
    def divergence(self) -> Row | None:
        """The first step at which the losses differ by more than they may."""
        return next((row for row in self.rows if self.apart(row)), None)

    @property
    def not_finite(self) -> Row | None:
        """The first step at which neither loss is finite: such runs have nothing to agree in."""
        return next(
            (row for row in self.rows if not (math.isfinite(row.first) or math.isfinite(row.second))), None
        )

    @property
    def agree(self) -> bool:
        """Whether all losses are finite and differ by no more than they may."""
        return self.divergence is None and self.not_finite is None

    @property
    def largest(self) -> Row:
        """The step with the largest difference."""
        return max(self.rows, key=lambda row: abs(row.difference))

    @property
    def factor(self) -> float | None:
        """By which all losses of the second run are larger, if it is one and not 1."""
        if any(not math.isfinite(row.first * row.second) or row.first <= 0 for row in self.rows):
            return None
        ratios = [row.second / row.first for row in self.rows]
        steady = len(ratios) > 2 and pstdev(ratios) < STEADY * abs(mean(ratios))
        return mean(ratios) if steady and self.divergence is not None else None

    def __str__(self) -> str:
        """Return what the comparison comes to, in sentences."""
        span = f"{len(self.rows)} entries, steps {self.rows[0].step} to {self.rows[-1].step}"
        first = self.divergence
        neither = self.not_finite
        if neither is not None and (first is None or neither.step < first.step):
            later = [row for row in self.rows if row.step > neither.step]
            none = sum(not (math.isfinite(row.first) or math.isfinite(row.second)) for row in later)
            return (
                f"the losses of both runs are not finite from step {neither.step} on: {neither.first} and "
                f"{neither.second}; of {len(later)} later entries {none} are so ({span}), and nothing can be "
                "compared there. Train with --find_nonfinite, which names the module"
            )
        if first is None:
            worst = self.largest
            return (
                f"the losses agree within {self.tolerance:.3g} ({span}); the largest difference is "
                f"{abs(worst.difference):.2e} at step {worst.step}"
            )
        later = [row for row in self.rows if row.step > first.step]
        stays = f"; of {len(later)} later entries {sum(map(self.apart, later))} differ so" if later else ""
        return (
            f"the losses part at step {first.step}: {first.first:.6g} and {first.second:.6g}, a difference "
            f"of {abs(first.difference):.2e} where {self.tolerance:.3g} may be ({span}){stays}. "
            f"{self._hint(first)}"
        )

    def _hint(self, first: Row) -> str:
        if not (math.isfinite(first.first) and math.isfinite(first.second)):
            return "One of them is not finite: train that run with --find_nonfinite"
        if self.factor is not None:
            return (
                f"The second is {self.factor:.3g} times the first throughout: look for a loss that is summed "
                "where the other one is averaged, over ranks, micro-batches or tokens"
            )
        if first is self.rows[0]:
            return (
                "They differ from the beginning: compare the weights that training starts from, the seed, "
                "the order of the data and the size of the batch"
            )
        return (
            "The beginnings agree, and so weights and data: look at gradients (--check_gradients), their "
            "reduction and clipping, the optimizer's settings and the learning rate"
        )


def compare_losses(
    first: Curve, second: Curve, *, tolerance: float = TOLERANCES["bf16"], steps: int = STEPS
) -> Comparison:
    """Compare two runs at the steps that both have logged; entries are means since the one before.

    Args:
        first: such as of a run on one card.
        second: of the run that is to have the same losses.
        tolerance: relative; `TOLERANCES` has some by dtype.
        steps: how many, from the beginning.

    Raises:
        DiagnosticsError: they have no two steps in common.
    """
    if first.numbered != second.numbered:
        raise DiagnosticsError(
            f"{first.source if second.numbered else second.source} is a log without numbers of steps; give "
            "the trainer_state.json of both runs"
        )
    common = [step for step in sorted({*first.steps} & {*second.steps}) if step <= steps]
    if len(common) < 2:
        raise DiagnosticsError(
            f"{first.source} has steps {_span(first.steps)} and {second.source} {_span(second.steps)}, of "
            f"which {len(common)} of the first {steps} is in both; log both runs with the same logging_steps"
        )
    begins = [0, *common[:-1]]
    rows = tuple(
        Row(step, first.at(step, since), second.at(step, since))
        for step, since in zip(common, begins, strict=True)
    )
    rounding = max(10.0**-curve.digits for curve in (first, second))
    return Comparison(rows, tolerance, rounding)


def _span(steps: Sequence[int]) -> str:
    return f"{steps[0]} to {steps[-1]}" if len(steps) > 1 else str(steps[0])
