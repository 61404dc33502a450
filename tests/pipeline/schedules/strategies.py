"""Random schedules and costs."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import strategies as st

from npu_plugins.pipeline.schedules import (
    SCHEDULES,
    TRAINING_SCHEDULES,
    Costs,
    Schedule,
    build_schedule,
    evaluation,
    vee,
)


@st.composite
def schedules(draw: st.DrawFn, names: tuple[str, ...] = SCHEDULES) -> Schedule:
    """A schedule of up to 6 ranks, 5 stages a rank, 22 micro-batches, as its generator returns it."""
    name = draw(st.sampled_from(names))
    ranks = draw(st.integers(1, 6))
    if name == "interleaved":
        return build_schedule(name, ranks, ranks * draw(st.integers(1, 3)), draw(st.integers(2, 5)))
    if name == "eval":
        if draw(st.booleans()):
            return evaluation(vee(ranks), draw(st.integers(1, 16)))
        return build_schedule(name, ranks, draw(st.integers(1, 16)), draw(st.integers(1, 3)))
    least = 2 * ranks if name == "dualpipe-v" else 1
    return build_schedule(name, ranks, draw(st.integers(least, least + 10)))


training_schedules = schedules(TRAINING_SCHEDULES)
times = st.integers(1, 12).map(lambda numerator: Fraction(numerator, 4))
costs = st.builds(Costs, times, times, times, st.just(Fraction(0)) | times)
